//! Threads started by a plugin are found, and compared with the bindings.

use polyrail_sys::threads::allowed_cpus;

use crate::{double, engine, inside, pair, wait_for};

#[test]
fn threads_of_a_plugin_are_compared_with_the_bindings() {
    let test = "threads::threads_of_a_plugin_are_compared_with_the_bindings";
    let cpus = allowed_cpus().unwrap();
    let (first, last) = (cpus[0], cpus[cpus.len() - 1]);
    inside(test, &[("SCATTER_THREAD_CPU", &last.to_string())], || {
        let bound = format!("lo:{first}");
        let (_one, two, _peer) = pair(&[("tx_bindings", &bound), ("rx_bindings", &bound)]);
        // The test plugin starts its thread with the first connection, and binds it then.
        let told = match first != last {
            true => format!("on CPUs {last}, which no binding names\n"),
            false => format!("on CPUs {last}\n"),
        };
        wait_for("a thread of the plugin is told", || two.dump().contains(&told));
        // Without bindings nothing was requested.
        let free = engine(&double(), &[]).unwrap();
        assert!(!free.dump().contains("no binding"), "{}", free.dump());
    });
}
