//! Ranks of a job, described by a launcher's environment. `launchers.rs` tests real launchers.

use std::process::Command;

use polyrail_rendezvous::{Membership, RendezvousError, join};
use polyrail_skip::HeldPort;

use crate::common::{Process, engine};

/// A rank with the environment that torchrun would set.
fn rank(place: &str, rank: usize, size: usize, group: &str, name: &str) -> Process {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rendezvous-member"));
    command.args([group, name, &size.to_string(), "stay"]).env("POLYRAIL_RENDEZVOUS", place);
    command.env("RANK", rank.to_string()).env("WORLD_SIZE", size.to_string());
    command.env("LOCAL_WORLD_SIZE", size.to_string());
    Process::start(&mut command)
}

#[test]
fn ranks_meet_by_rank_0_which_may_come_last_and_hear_who_dies_and_comes_back() {
    let port = HeldPort::new();
    let place = format!("torchrun://:{}", port.number());
    let start = |number| rank(&place, number, 3, "g", "-");
    let (one, two) = (start(1), start(2));
    let zero = start(0);
    for process in [&zero, &one, &two] {
        process.until("heard 2");
    }
    two.kill();
    for process in [&zero, &one] {
        process.until("left rank-2");
    }
    let again = start(2);
    for process in [&zero, &one] {
        process.until("joined rank-2");
    }
    again.until("found 3");
    // Wait: it would give up if a peer that it sends to died in between.
    again.until("told 2");
    // A rank that starts before rank 0 has noticed the end of its predecessor waits for that.
    one.kill();
    let again = start(1);
    again.until("found 3");
    zero.until("joined rank-1");
}

#[test]
fn rank_0_may_leave_or_die_and_nobody_else_has_left_by_that() {
    for dies in [false, true] {
        let port = HeldPort::new();
        let place = format!("torchrun://:{}", port.number());
        let start = |number| rank(&place, number, 3, "g", "-");
        let (mut zero, one, two) = (start(0), start(1), start(2));
        for process in [&zero, &one, &two] {
            process.until("heard 2");
        }
        if dies {
            zero.kill();
            let zero = start(0);
            // Rank 0 sees both again, and they see its new run.
            zero.until("found 3");
            for process in [&one, &two] {
                process.until("left rank-0");
                process.until("joined rank-0");
            }
        } else {
            drop(zero.take_stdin());
            zero.until("over");
            for process in [one, two] {
                let mut process = process;
                drop(process.take_stdin());
                let last = process.until("over");
                assert!(!last.iter().any(|line| line.contains("left rank-1")), "{last:?}");
            }
        }
    }
}

#[test]
fn a_rank_of_another_group_or_with_a_name_that_is_taken_is_refused() {
    let port = HeldPort::new();
    let place = format!("torchrun://:{}", port.number());
    let zero = rank(&place, 0, 2, "g", "same");
    zero.until("entered same");
    // Each retries for some seconds, because the name of a dead rank becomes free soon.
    let others = [("g", "same", "the name `same` is taken"), ("h", "x", "is in the group `g`")]
        .map(|(group, name, why)| (rank(&place, 1, 2, group, name), why));
    for (other, why) in &others {
        other.until(why);
    }
}

#[test]
fn without_a_launcher_the_missing_variable_is_named() {
    let own = engine("slurm://");
    let error = join(&own, &Membership::new("g").unwrap()).unwrap_err();
    let told = error.to_string();
    assert!(matches!(error, RendezvousError::Environment { .. }), "{told}");
    assert!(told.contains("SLURM_STEP_NUM_TASKS or SLURM_NTASKS is not set"), "{told}");
    assert!(error.help().unwrap().contains("srun"));
}
