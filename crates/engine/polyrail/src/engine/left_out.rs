//! Log lines about interfaces that are not rails.

use parking_lot::Mutex;
use polyrail_config::{AddressFamily, Config, Origin};
use polyrail_proto::rails::{Family, Interface, LeftOut, Wanted, unknown};

/// The settings that rails depend on.
pub(crate) fn wanted(config: &Config) -> Wanted<'_> {
    Wanted {
        spec: &config.rails,
        is_named: config.names_rails(),
        family: match config.address_family {
            AddressFamily::Auto => None,
            AddressFamily::Ipv4 => Some(Family::Ipv4),
            AddressFamily::Ipv6 => Some(Family::Ipv6),
        },
    }
}

/// Warns of names behind `^` that match no interface, once per process if all engines have the same.
pub(crate) fn warn_of_unknown(config: &Config, all: &[Interface]) {
    static LAST: Mutex<String> = Mutex::new(String::new());
    let unknown = own_unknown(config, all).join(", ");
    if !unknown.is_empty() && *LAST.lock() != unknown {
        tracing::warn!(target: "polyrail::rail", "rails excludes {unknown}, which no interface is called");
        *LAST.lock() = unknown;
    }
}

/// Such names in Polyrail's own setting. NCCL's users list names that only some of their hosts have.
fn own_unknown(config: &Config, all: &[Interface]) -> Vec<String> {
    match config.origin("rails").is_some_and(Origin::is_foreign) {
        true => Vec::new(),
        false => unknown(wanted(config), all),
    }
}

/// Logs the interfaces that are not rails and the reasons, once per process if all engines find the same.
pub(crate) fn log(config: &Config, remark: Option<&str>, left_out: &[LeftOut]) {
    static LAST: Mutex<String> = Mutex::new(String::new());
    let line = LeftOut::line(left_out).unwrap_or_default();
    if line.is_empty() && remark.is_none() {
        return;
    }
    if config.names_rails() {
        tracing::info!(target: "polyrail::rail", "interfaces that are no rails: {line}");
        return;
    }
    let told = match remark {
        None => format!("interfaces that are no rails: {line}"),
        Some(remark) if line.is_empty() => remark.to_owned(),
        Some(remark) => format!("{remark}; interfaces that are no rails: {line}"),
    };
    if std::mem::replace(&mut *LAST.lock(), told.clone()) != told {
        tracing::warn!(target: "polyrail::rail", "{told}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_match_nothing_are_warned_of_unless_they_were_written_for_nccl() {
        let own = Config::builder().set("rails", "^docker,lo").unwrap().build().unwrap();
        assert_eq!(own_unknown(&own, &[]), ["docker", "lo"]);
        let nccl = [("NCCL_SOCKET_IFNAME".to_owned(), "^docker,lo".to_owned())];
        let nccl = Config::builder().env_from(nccl).build().unwrap();
        assert_eq!(nccl.rails, "^docker,lo");
        assert!(own_unknown(&nccl, &[]).is_empty(), "only some hosts have Docker");
    }
}
