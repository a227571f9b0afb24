//! All checks, by group.

mod bindings;
mod cpu;
mod devmem;
mod irq;
mod links;
mod memory;
mod net;
mod permissions;
mod plugins;
mod queues;
mod routes;
mod sockets;
mod steering;
mod tcpx;
mod topology;

use crate::check::Check;

/// Every check. Within one cost class, reports keep this order.
pub static CHECKS: &[&[Check]] = &[
    topology::CHECKS,
    links::CHECKS,
    routes::CHECKS,
    irq::CHECKS,
    queues::CHECKS,
    net::CHECKS,
    sockets::CHECKS,
    cpu::CHECKS,
    bindings::CHECKS,
    steering::CHECKS,
    memory::CHECKS,
    devmem::CHECKS,
    tcpx::CHECKS,
    permissions::CHECKS,
    plugins::CHECKS,
];

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn checks_are_many_and_each_says_all_that_it_must() {
        let all: Vec<&Check> = CHECKS.iter().copied().flatten().collect();
        assert!(all.len() >= 40, "{}", all.len());
        let mut ids = HashSet::new();
        for check in all {
            let is_kebab = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            assert!(check.id.chars().all(is_kebab), "{}", check.id);
            assert!(ids.insert(check.id), "{} is there twice", check.id);
            assert!(
                check.why.len() > 60 && check.why.ends_with('.'),
                "{}: {}",
                check.id,
                check.why
            );
            assert!(check.remedy.len() > 15 && check.remedy.ends_with('.'), "{}", check.id);
            assert!(!check.title.ends_with('.') && !check.reads.is_empty(), "{}", check.id);
        }
    }
}
