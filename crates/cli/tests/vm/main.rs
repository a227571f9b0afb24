//! Changes to a host on a real kernel: a virtual machine with 16 CPUs on two nodes, four multi-queue NICs and a disk
//! with managed vectors boots once, with the real command inside, and runs every scenario of `guest.sh`. At the end of
//! each scenario every setting is byte for byte as it was.
//!
//! Needs QEMU, a kernel (`.ci/vm-kernel` downloads them; each one there is booted), a static busybox and ethtool; and
//! root, for a network namespace with taps.

mod boot;
mod initramfs;

use std::sync::LazyLock;

use boot::{Boot, Missing};

/// All boots, or the reason why there are none. A boot that goes wrong fails every scenario.
static BOOTS: LazyLock<Result<Vec<Boot>, Missing>> = LazyLock::new(boot::all);

macro_rules! scenarios {
    ($($sentence:ident: $name:literal,)*) => {$(
        #[test]
        fn $sentence() {
            check($name);
        }
    )*

        /// Names of exactly the scenarios that the guest's script must run.
        const NAMES: &[&str] = &[$($name),*];
    };
}

scenarios! {
    a_plan_is_applied_verified_and_taken_back: "round_trip",
    an_idle_interrupt_is_pending_until_traffic_comes: "pending",
    ethtool_that_overwrites_affinities_is_noticed: "channels_overwrite",
    a_cpu_that_goes_offline_inside_a_plan_is_noticed: "cpu_offline",
    a_managed_vector_is_skipped_and_no_failure: "managed",
    a_rival_that_rewrites_a_mask_each_second_is_named: "rival",
    irqbalance_is_stopped_while_a_plan_holds_and_started_again: "irqbalance",
    a_driver_that_forgets_affinities_is_told_from_a_process: "driver_named",
    a_killed_apply_is_taken_back_from_the_journal_alone: "kill_9",
    an_interrupted_apply_takes_back_what_it_did: "interrupted",
    two_instances_do_not_change_a_host_at_once: "two_instances",
    several_sessions_are_taken_back_to_the_first_values: "pristine",
    a_read_only_proc_is_refused_before_anything_is_written: "read_only_proc",
    without_root_plans_are_shown_and_applying_says_what_is_missing: "non_root",
    an_unwritable_backup_folder_changes_nothing: "unwritable_backup",
    a_full_disk_in_the_middle_of_the_journal_is_rolled_back: "full_disk",
    a_nic_that_vanished_since_the_plan_is_refused: "vanished",
    a_plan_of_another_boot_needs_force: "other_boot",
    a_profile_is_applied_verified_and_taken_back: "profile",
    what_may_cut_the_default_route_is_refused_or_comes_back_by_itself: "disruptive",
    packets_are_spread_over_other_queues_and_back: "rss",
    a_setting_that_the_driver_refuses_changes_nothing: "refused_setting",
    an_experiment_moves_real_interrupts_for_its_cells_alone: "experiment",
    a_killed_experiment_is_undone_from_its_folder: "killed_experiment",
    without_root_an_experiment_runs_the_cells_that_it_may: "experiment_without_rights",
}

#[test]
fn the_guest_runs_every_scenario_and_no_other_in_time() {
    for boot in boots() {
        let mut run = boot.scenarios();
        run.sort_unstable();
        let mut wanted = NAMES.to_vec();
        wanted.sort_unstable();
        assert_eq!(run, wanted, "{}", boot.text());
        let (up, end) = (boot.at("up "), boot.at("end "));
        println!("{}: up at {up:.1} s, ended at {end:.1} s\n{}", boot.kernel(), boot.times());
        // A bound in seconds would measure the machine: the same guest took 66 s on one and 118 s on another. Where the
        // scenarios are slow, the start of the kernel is, too.
        assert!(end / up < TIMES_ITS_START, "{}: {up} s to be up, {end} s in all", boot.kernel());
    }
}

/// Longest run time of the guest, as a multiple of the time until it was up. It was 11.1 times on two idle CPUs (103 s)
/// and 11.7 times next to two busy loops (132 s); a third more is a scenario that waits.
const TIMES_ITS_START: f64 = 15.0;

fn check(scenario: &str) {
    for boot in boots() {
        assert!(
            boot.has_passed(scenario),
            "{scenario} on {}:\n{}",
            boot.kernel(),
            boot.about(scenario)
        );
    }
}

/// At least one boot; or none, and the test is skipped.
fn boots() -> &'static [Boot] {
    match &*BOOTS {
        Ok(boots) => {
            assert!(!boots.is_empty(), "no kernel was booted, and none is said to be missing");
            boots
        }
        Err(Missing(reason)) => {
            polyrail_skip::skip(
                reason,
                "apt-get install qemu-system-x86 busybox-static ethtool iproute2 xz-utils && \
                 .ci/vm-kernel && sudo -E cargo test -p polyrail-cli --test vm",
            );
            &[]
        }
    }
}
