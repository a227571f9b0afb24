//! Engines used by threads of another network namespace than the one in which they were started.

use std::thread;

use polyrail::{Config, Engine};
use polyrail_lab::{Lab, LabSpec, Privilege, Side, availability};
use polyrail_skip::skip;

fn start(rails: &str) -> Engine {
    let config = Config::builder().set("rails", rails).unwrap().build().unwrap();
    Engine::builder().config(config).build().unwrap()
}

#[test]
fn rails_are_paired_by_the_routes_of_the_namespace_that_the_engine_was_started_in() {
    if !matches!(availability(), Ok(Privilege::Root)) {
        return skip("not root", "sudo -E cargo test -p polyrail-testkit --test namespaces");
    }
    let rails = LabSpec::parse_rails("1gbit").unwrap();
    let lab = Lab::up(&LabSpec::new(format!("moved-{}", std::process::id()), rails)).unwrap();
    let lab = lab.guard();
    let build = || {
        lab.enter_thread(Side::A).unwrap();
        (start("127.0.0.1"), start("rail0"))
    };
    let (loopback, railed) = thread::scope(|scope| scope.spawn(build).join()).unwrap();
    // In this thread's namespace no route leads from a loopback address to the lab's rail.
    let peer = loopback.add_peer(&railed.metadata()).unwrap();
    assert_eq!(peer.instance(), railed.instance());
}
