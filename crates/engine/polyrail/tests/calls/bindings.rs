//! Proxies on the CPUs of their interface.

use crate::common::{InTime, filled, pair, remote, zeroed};
use polyrail::{Config, Engine};

fn write_once(settings: &[(&str, &str)]) -> polyrail::Stats {
    let p = pair(settings);
    let (source, target) = (filled(&p.a, 8 << 20, 1), zeroed(&p.b, 8 << 20));
    p.a.write(&p.to_b, &source.all(), &remote(&p.a, &target).all()).unwrap().ended().unwrap();
    p.a.stats()
}

#[test]
fn proxies_run_where_the_bindings_of_their_interface_say_and_the_caller_stays() {
    let before = polyrail_sys::threads::allowed_cpus().unwrap();
    let (first, last) = (before[0], before[before.len() - 1]);
    let (tx, rx) = (format!("lo:{first};eth77:{last}"), format!("lo:{last}"));
    let stats = write_once(&[("tx_bindings", &tx), ("rx_bindings", &rx), ("proxies", "2,1")]);
    assert_eq!(polyrail_sys::threads::allowed_cpus().unwrap(), before);
    let seen: Vec<_> = stats
        .proxies
        .iter()
        .map(|proxy| (proxy.name.as_str(), proxy.cpus.as_slice(), proxy.actual_cpus.as_slice()))
        .collect();
    let (first, last) = ([first], [last]);
    assert_eq!(
        seen,
        [
            ("pr-tx0", first.as_slice(), first.as_slice()),
            ("pr-tx1", &first, &first),
            ("pr-rx0", &last, &last)
        ]
    );
    // A thread that is bound to one CPU can't migrate.
    assert!(stats.proxies.iter().all(|proxy| proxy.migrations == 0));
    assert!(stats.proxies.iter().all(|proxy| proxy.last_cpu == Some(proxy.cpus[0])));
}

#[test]
fn interfaces_that_bindings_do_not_name_go_by_the_entry_without_a_name() {
    let cpus = polyrail_sys::threads::allowed_cpus().unwrap();
    let (first, last) = (cpus[0], cpus[cpus.len() - 1]);
    let stats = write_once(&[("tx_bindings", &format!("eth77:{last};{first}"))]);
    let tx: Vec<_> = stats.proxies.iter().filter(|p| p.name.starts_with("pr-tx")).collect();
    assert!(!tx.is_empty() && tx.iter().all(|proxy| proxy.actual_cpus == [first]));
    let rx = stats.proxies.iter().find(|p| p.name == "pr-rx0").unwrap();
    assert!(rx.cpus.is_empty() && !rx.actual_cpus.is_empty());
}

#[test]
fn merged_proxies_take_the_bindings_of_either_way() {
    let first = polyrail_sys::threads::allowed_cpus().unwrap()[0];
    let text = format!("lo:{first}");
    let stats = write_once(&[("proxy_layout", "merged"), ("rx_bindings", &text)]);
    assert!(stats.proxies.iter().all(|proxy| proxy.actual_cpus == [first]), "{stats:?}");
}

#[test]
fn bindings_to_cpus_that_are_not_there_are_refused() {
    let config = Config::builder().set("rails", "127.0.0.1").unwrap();
    let config = config.set("rx_bindings", "lo:8191").unwrap().build().unwrap();
    let error = Engine::builder().config(config).build().unwrap_err().to_string();
    assert!(
        error.starts_with("rx_bindings = `lo:8191` (from an option or the program): "),
        "{error}"
    );
}
