//! Serving end of `bench --listen`.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::sync::Arc;

use polyrail::{Config, Engine, LeftOut, LostReason};
use polyrail_report::exit;

use super::serve::serve;
use crate::cmd::bench::memory::Bank;
use crate::cmd::bench::options::Server;
use crate::fault::{Cause, Fault};
use crate::interrupt::{AtOnce, Interrupt};
use crate::stdout::{say, tell};

/// Maximum number of addresses in the line for the other machine: more make the line hard to type.
const SHOWN_ADDRESSES: usize = 4;

/// Serves clients until Ctrl-C, which is the usual end and no failure. `wanted` are the addresses of the given name;
/// `threads` describes the placement of the threads.
pub(crate) fn listen(
    config: Config,
    bank: Bank,
    wanted: &[SocketAddr],
    threads: &str,
) -> Result<u8, Fault> {
    let interrupt = Interrupt::install(AtOnce::Second)?;
    let engine = Engine::builder().config(config).build()?;
    tell!("threads: {threads}");
    let addresses = engine.addresses();
    let (served, missing) = split(wanted, &addresses);
    if served.is_empty() && !missing.is_empty() {
        let rails: Vec<String> = addresses.iter().map(|rail| rail.ip().to_string()).collect();
        let left_out = left_out(&engine);
        let (missing, rails) = (missing.join(", "), rails.join(", "));
        let text =
            format!("listening address {missing} is on none of the rails: {rails}{left_out}");
        let help = "give --rails the address, or listen on one of these";
        return Err(Fault::environment(text).with_help(help));
    }
    if !missing.is_empty() {
        tell!("not listening on {}, which is on none of the rails", missing.join(", "));
    }
    if let Some(address) = served.first().or(addresses.first()) {
        let all = if served.is_empty() { vec![*address] } else { served.clone() };
        let all: Vec<_> = all.iter().map(ToString::to_string).collect();
        say!("listening on {}\non this host: polyrail bench --connect {address}", all.join(", "));
        if addresses.iter().all(|rail| rail.ip().is_loopback()) {
            let why = match engine.config().names_rails() {
                true => "; `--rails auto` takes the interfaces that lead to other hosts",
                false => ", and no interface leads to other hosts",
            };
            say!(
                "elsewhere:    not possible: only this host can reach {}{why}{}",
                address.ip(),
                left_out(&engine)
            );
            tell!("end with Ctrl-C; `polyrail host show` lists the interfaces");
        } else {
            // The other machine may reach only some of the addresses.
            let others = addresses.iter().filter(|other| *other != address);
            let mut all = vec![*address];
            all.extend(others);
            all.truncate(SHOWN_ADDRESSES);
            let server = Server { addresses: all, invitation: Some(engine.invitation()) };
            say!("elsewhere:    polyrail bench --connect {server}");
            tell!(
                "the line with `elsewhere` lets in whoever has it, until this process ends; end with Ctrl-C"
            );
        }
    }
    let lost = RefCell::new(None);
    serve(&engine, &Arc::new(bank), &interrupt, |peer, result| {
        match result {
            Ok(silent) => {
                tell!("served {}", peer.name());
                silent.iter().for_each(|line| tell!("rails: {line}"));
            }
            // A rail that a plugin hosts can't serve another client.
            Err(fault) => match &fault.cause {
                Cause::Gone(why) if matches!(**why, LostReason::Plugin { .. }) => {
                    lost.replace(Some(fault));
                    return false;
                }
                Cause::Gone(why) => {
                    tell!("served {}, which went away before it was done: {why}", peer.name());
                }
                _ => tell!("served {}, which ended early: {fault}", peer.name()),
            },
        }
        true
    });
    lost.into_inner().map_or(Ok(exit::OK), Err)
}

/// Returns the rails that have the addresses of a name, in the name's order, and the addresses that no rail has. An
/// unspecified address stands for all rails.
fn split(wanted: &[SocketAddr], rails: &[SocketAddr]) -> (Vec<SocketAddr>, Vec<String>) {
    let mut both = (Vec::new(), Vec::new());
    for ip in wanted.iter().map(SocketAddr::ip).filter(|ip| !ip.is_unspecified()) {
        match rails.iter().find(|rail| rail.ip() == ip) {
            Some(rail) => both.0.push(*rail),
            None => both.1.push(ip.to_string()),
        }
    }
    both
}

/// Returns `; left out: …` if any interface is left out.
fn left_out(engine: &Engine) -> String {
    let line = LeftOut::line(&engine.left_out());
    line.map(|line| format!("; left out: {line}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_of_a_name_is_served_or_named() {
        let parse = |all: &[&str]| -> Vec<SocketAddr> {
            all.iter().map(|one| one.parse().unwrap()).collect()
        };
        let rails = parse(&["10.0.0.1:7000", "[fd00::1]:7000", "10.0.1.1:7000"]);
        let wanted = parse(&["[fd00::9]:7000", "10.0.1.1:7000", "[fd00::1]:7000"]);
        let (served, missing) = split(&wanted, &rails);
        assert_eq!(served, parse(&["10.0.1.1:7000", "[fd00::1]:7000"]));
        assert_eq!(missing, ["fd00::9"]);
        assert_eq!(split(&parse(&["0.0.0.0:7000"]), &rails), (vec![], vec![]));
    }
}
