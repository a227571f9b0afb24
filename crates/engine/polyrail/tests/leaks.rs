//! An engine returns all that it takes from the system. Alone in its process, so that only this engine's resources are
//! counted.

mod common;

use common::*;

fn count(what: &str) -> usize {
    std::fs::read_dir(format!("/proc/self/{what}")).unwrap().count()
}

#[test]
fn a_hundred_engines_leave_no_descriptor_and_no_thread_behind() {
    let before = (count("fd"), count("task"));
    for round in 0..50 {
        let settings: &[_] = match round % 3 {
            0 => &[],
            1 => &[("progress", "caller")],
            _ => &[("proxy_layout", "merged"), ("channels", "8")],
        };
        let p = pair(settings);
        let (source, target) = (filled(&p.a, 100_000, 1), zeroed(&p.b, 100_000));
        let there = remote(&p.a, &target);
        let transfer = p.a.write(&p.to_b, &source.all(), &there.all()).unwrap();
        // Some are in use when they are dropped, some are connecting, some are idle.
        if round % 2 == 0 {
            transfer.ended().unwrap();
        }
    }
    wait_for("threads and descriptors to be given back", || (count("fd"), count("task")) == before);
}
