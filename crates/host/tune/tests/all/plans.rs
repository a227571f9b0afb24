//! Planned places of queues on machines of every shape, and files that can't be used.

use std::collections::BTreeMap;

use polyrail_host::fixtures::{self, Fixture};
use polyrail_host::{CpuSet, Topology};
use polyrail_tune::irq::{IrqMap, Policy, PolicyOptions, plan, plan_from_map};
use polyrail_tune::profile::{self, Profile};
use polyrail_tune::{Plan, TuneError};
use proptest::prelude::*;

use crate::common::{Shaky, named, plan_of, two_nics};

fn ready(fixture: Fixture) -> Fixture {
    named(fixture, "fixture", "1f0c0b52-0000-4000-8000-000000000001")
}

fn cpus(list: &str) -> CpuSet {
    CpuSet::parse_list(list).unwrap()
}

/// The CPUs planned for each interface.
fn places(plan: &Plan) -> BTreeMap<String, CpuSet> {
    let mut found: BTreeMap<String, CpuSet> = BTreeMap::new();
    for (_, what, wanted) in plan.wanted() {
        let nic = what.split(' ').next().unwrap().to_owned();
        let all = found.entry(nic).or_default();
        all.extend(cpus(wanted).iter());
    }
    found
}

fn planned(fixture: &Fixture, policy: Policy, options: &PolicyOptions) -> Result<Plan, TuneError> {
    let topology = Topology::read(&fixture.root()).unwrap();
    plan(&mut Shaky::new(fixture.root()), &topology, policy, options)
}

#[test]
fn split_on_a3_high_gives_each_queue_a_core_of_the_nics_node_and_shares_none() {
    let fixture = ready(fixtures::a3_high());
    let plan = planned(&fixture, Policy::Split, &PolicyOptions::default()).unwrap();
    assert!(plan.warnings.is_empty(), "{:?}", plan.warnings);
    let places = places(&plan);
    let (node0, node1) = (cpus("0-51,104-155"), cpus("52-103,156-207"));
    for (nic, node) in [("eth0", &node0), ("eth1", &node0), ("eth3", &node1), ("eth4", &node1)] {
        assert!(places[nic].is_subset(node), "{nic}: {}", places[nic]);
        assert_eq!(places[nic].len(), 16, "{nic}: a core for each queue");
    }
    let all: usize = places.values().map(CpuSet::len).sum();
    let together = places.values().fold(CpuSet::new(), |all, cpus| all.union(cpus));
    assert_eq!(together.len(), all, "interfaces share no CPU");
    assert!(!together.contains(0) && !together.contains(104), "CPU 0 and its sibling are free");
    // Old vectors were on CPUs 0 to 15, whatever the node: those of eth3 all have to move.
    let moved = plan.changes.iter().filter(|change| change.what.starts_with("eth3 ")).count();
    assert_eq!(moved, 32);
    let tx0 = plan.wanted().find(|(_, what, _)| *what == "eth1 tx 0").unwrap().2;
    let rx0 = plan.wanted().find(|(_, what, _)| *what == "eth1 rx 0").unwrap().2;
    assert_eq!(tx0, rx0, "both directions of a queue share their core");
    assert!(plan.skipped.iter().all(|skipped| skipped.what.ends_with("mgmt")));
    assert_eq!(plan.skipped.len(), 5);
}

#[test]
fn split_keeps_away_from_workers_and_says_so_when_that_leaves_too_few_cores() {
    let fixture = ready(fixtures::a3_high());
    let workers = cpus("8-35");
    let mut options = PolicyOptions { nics: vec!["eth1".to_owned()], ..PolicyOptions::default() };
    options.tx_workers.insert("eth1".to_owned(), workers.clone());
    let plan = planned(&fixture, Policy::Split, &options).unwrap();
    assert!(!places(&plan)["eth1"].intersects(&workers));

    options.cpus = Some(cpus("40-43"));
    let plan = planned(&fixture, Policy::Split, &options).unwrap();
    assert_eq!(places(&plan)["eth1"], cpus("40-43"));
    assert!(plan.warnings[0].contains("fewer queues"), "{:?}", plan.warnings);
}

#[test]
fn colocate_puts_each_queue_beside_its_worker_and_needs_to_know_them() {
    let fixture = ready(fixtures::a3_high());
    let mut options = PolicyOptions { nics: vec!["eth1".to_owned()], ..PolicyOptions::default() };
    let error = planned(&fixture, Policy::Colocate, &options).unwrap_err();
    assert!(error.to_string().contains("--tx-bindings"), "{error}");
    options.tx_workers.insert("eth1".to_owned(), cpus("8-21"));
    options.rx_workers.insert("eth1".to_owned(), cpus("22-35"));
    let plan = planned(&fixture, Policy::Colocate, &options).unwrap();
    let of = |what: &str| plan.wanted().find(|(_, found, _)| *found == what).unwrap().2.to_owned();
    assert_eq!(of("eth1 tx 0"), "112");
    assert_eq!(of("eth1 rx 1"), "127");
}

#[test]
fn numa_single_and_spread_do_what_they_say() {
    let fixture = two_nics(24);
    let of = |policy| places(&planned(&fixture, policy, &PolicyOptions::default()).unwrap());
    assert_eq!(of(Policy::Numa)["eth10"], cpus("4-7"));
    assert_eq!(of(Policy::Single)["eth10"], cpus("4"));
    assert_eq!(of(Policy::Spread)["eth1"].union(&of(Policy::Spread)["eth10"]), cpus("0-7"));
}

#[test]
fn an_unknown_node_is_not_node_0_and_is_told() {
    let fixture = ready(fixtures::unknown_nodes());
    let plan = planned(&fixture, Policy::Split, &PolicyOptions::default()).unwrap();
    assert!(plan.warnings.iter().any(|warning| warning.contains("NUMA node is unknown")));
}

#[test]
fn cpus_beyond_64_and_holes_make_no_difference() {
    for fixture in [fixtures::cpus_512(), fixtures::cpu_holes(), fixtures::mlx5_four_nodes()] {
        let fixture = ready(fixture);
        let topology = Topology::read(&fixture.root()).unwrap();
        let plan = planned(&fixture, Policy::Split, &PolicyOptions::default()).unwrap();
        assert!(plan.wanted().count() > 0);
        for (nic, planned) in places(&plan) {
            assert!(planned.is_subset(&topology.cpus.online));
            let near = topology.cpus_near(topology.nic(&nic).unwrap().node);
            assert!(near.is_none_or(|near| planned.is_subset(&near)), "{nic}: {planned}");
        }
    }
}

#[test]
fn machines_without_nics_have_an_empty_plan() {
    let fixture = ready(fixtures::no_nics());
    let plan = planned(&fixture, Policy::Split, &PolicyOptions::default()).unwrap();
    assert_eq!(plan.wanted().count(), 0);
}

#[test]
fn an_interface_is_known_by_its_whole_name() {
    let fixture = two_nics(24);
    let options = PolicyOptions { nics: vec!["eth1".to_owned()], ..PolicyOptions::default() };
    let plan = planned(&fixture, Policy::Spread, &options).unwrap();
    assert_eq!(places(&plan).keys().collect::<Vec<_>>(), ["eth1"]);
    let options = PolicyOptions { nics: vec!["eth".to_owned()], ..PolicyOptions::default() };
    let error = planned(&fixture, Policy::Spread, &options).unwrap_err();
    assert!(error.to_string().ends_with("allowed: eth1, eth10"), "{error}");
}

#[test]
fn cpus_that_are_not_online_are_refused_with_those_that_are() {
    let fixture = two_nics(24);
    let options = PolicyOptions { cpus: Some(cpus("3,900")), ..PolicyOptions::default() };
    let error = planned(&fixture, Policy::Spread, &options).unwrap_err();
    assert!(error.to_string().contains("allowed: 0-15"), "{error}");
    let options = PolicyOptions { avoid: cpus("0-15"), ..PolicyOptions::default() };
    assert!(planned(&fixture, Policy::Spread, &options).is_err());
}

fn from_map(text: &str) -> Result<Plan, TuneError> {
    let fixture = two_nics(24);
    let topology = Topology::read(&fixture.root()).unwrap();
    let map = IrqMap::parse(text, "map.yaml")?;
    plan_from_map(&mut Shaky::new(fixture.root()), &topology, &map)
}

#[test]
fn a_map_places_directions_queues_and_vectors_and_the_last_rule_counts() {
    let text = "eth1: {rx: '4-5', tx: 6}\neth10:\n  rx: 1\n  queues:\n    2: 9-10\n";
    let plan = from_map(text).unwrap();
    let of = |what: &str| plan.wanted().find(|(_, found, _)| *found == what).unwrap().2.to_owned();
    assert_eq!(
        (of("eth1 rx 0"), of("eth1 rx 1"), of("eth1 rx 2")),
        ("4".into(), "5".into(), "4".into())
    );
    assert_eq!(of("eth1 tx 3"), "6");
    assert_eq!(
        (of("eth10 rx 1"), of("eth10 rx 2"), of("eth10 tx 2")),
        ("1".into(), "9-10".into(), "9-10".into())
    );
}

#[test]
fn storage_and_management_vectors_are_planned_where_the_map_names_them() {
    let text = "\"0000:00:03.0\":\n  vectors:\n    1: 3\neth1:\n  vectors:\n    0: 3\n";
    let plan = from_map(text).unwrap();
    assert_eq!((plan.wanted().count(), plan.skipped.len()), (2, 0));
}

#[test]
fn a_bad_map_is_refused_with_its_line_and_column() {
    for (text, at, words) in [
        ("eth1:\n  rx: 4-\n", "map.yaml:2:7: ", "4-"),
        ("eth1:\n  rx: 900\n", "map.yaml:2:7: ", "CPU 900 is not online; online are 0-15"),
        ("eth1:\n  rx: 9000\n", "map.yaml:2:7: ", "9000"),
        ("eth1:\n  rx: ''\n", "map.yaml:2:7: ", "names no CPU"),
        ("eth1:\n  up: 4\n", "map.yaml:2:3: ", "`up` is not known; allowed: rx, tx"),
        ("eth2:\n  rx: 4\n", "map.yaml:1:1: ", "interfaces: eth1, eth10"),
        ("eth1:\n  queues:\n    x: 4\n", "map.yaml:3:5: ", "`x` is not a number"),
        ("eth1:\n  queues:\n    99: 4\n", "map.yaml:3:9: ", "no such queue"),
        ("eth1: 4\n", "map.yaml:1:7: ", "`name: value` lines"),
        ("eth1:\n  rx: [4]\n", "map.yaml:2:7: ", "must be one value"),
        ("eth1:\n  rx: 4\neth1:\n  rx: 5\n", "map.yaml:3:1: ", "`eth1` is there twice"),
        ("eth1: &a\n  rx: 4\n", "map.yaml:", "anchor"),
        ("eth1:\n\trx: 4\n", "map.yaml:", ""),
        ("", "map.yaml:1:1: ", "is empty"),
        ("a: b\n---\nc: d\n", "map.yaml:", ""),
    ] {
        let error = from_map(text).unwrap_err().to_string();
        assert!(error.starts_with(at) && error.contains(words), "{text:?}: {error}");
    }
}

#[test]
fn a_plan_reads_back_and_an_edited_one_is_refused() {
    let fixture = two_nics(24);
    let plan = plan_of(&mut Shaky::new(fixture.root()), Policy::Split);
    let text = plan.to_json();
    assert_eq!(Plan::parse(&text).unwrap(), plan);
    let edited = text.replacen("\"old\": \"0\"", "\"old\": \"2\"", 1);
    assert_ne!(edited, text);
    let error = Plan::parse(&edited).unwrap_err();
    assert!(error.to_string().contains("was edited"), "{error}");
}

#[test]
fn a_plan_file_may_not_send_root_anywhere() {
    let fixture = two_nics(24);
    let mut plan = plan_of(&mut Shaky::new(fixture.root()), Policy::Split);
    for (path, allowed) in [
        ("/etc/passwd", false),
        ("/proc/sys/../../etc/passwd", false),
        ("/proc/sysrq-trigger", false),
        ("/sys/class/net/eth1/queues/tx-0/xps_cpus", true),
        ("/proc/sys/net/core/rmem_max", true),
    ] {
        plan.changes.truncate(1);
        plan.changes[0].target = polyrail_tune::Target::File { path: path.to_owned() };
        let result = Plan::parse(&plan.clone().seal().to_json());
        assert_eq!(result.is_ok(), allowed, "{path}: {result:?}");
    }
}

#[test]
fn what_is_no_plan_is_refused_with_its_place() {
    for (text, words) in [
        ("", "line 1 column 0"),
        ("{\"schema_version\": 1,\n  \"name\": 7}", "line 2"),
        ("{\"schema_version\": 2}", "has schema_version 2; allowed: 1"),
        ("[]", "line 1"),
    ] {
        let error = Plan::parse(text).unwrap_err().to_string();
        assert!(error.starts_with("the plan ") && error.contains(words), "{text}: {error}");
    }
    let fixture = two_nics(24);
    let mut plan = plan_of(&mut Shaky::new(fixture.root()), Policy::Split);
    for (new, words) in [("9000", "9000"), ("", "no CPU"), ("x", "`x`")] {
        new.clone_into(&mut plan.changes[0].new);
        let error = Plan::parse(&plan.clone().seal().to_json()).unwrap_err().to_string();
        assert!(error.contains(words), "{new}: {error}");
    }
}

#[test]
fn profiles_state_reason_and_source_for_each_setting() {
    let profiles = Profile::built_in().unwrap();
    assert!(profiles.len() >= 3);
    for profile in profiles {
        assert!(!profile.about.is_empty());
        for rule in &profile.rules {
            assert!(rule.why.len() > 10 && rule.source.len() > 3, "{rule:?}");
        }
    }
    let error = Profile::named("fast").unwrap_err();
    assert!(error.to_string().contains("throughput, latency, zerocopy"), "{error}");
}

#[test]
fn a_profile_changes_what_is_worse_and_leaves_what_is_better() {
    let fixture = two_nics(24);
    fixture.write("/proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n");
    fixture.write("/proc/sys/net/ipv4/tcp_wmem", "4096\t16384\t99999999\n");
    fixture.write("/proc/sys/kernel/numa_balancing", "1\n");
    let topology = Topology::read(&fixture.root()).unwrap();
    let profile = Profile::named("throughput").unwrap();
    let plan = profile::plan(&mut Shaky::new(fixture.root()), &topology, &profile, &[]).unwrap();
    let new = |end: &str| {
        let of = |change: &&polyrail_tune::Change| change.target.to_string().ends_with(end);
        plan.changes.iter().find(of).map(|change| change.new.clone())
    };
    assert_eq!(new("tcp_rmem").unwrap(), "4096\t131072\t33554432");
    assert_eq!(new("tcp_wmem"), None);
    assert_eq!(new("numa_balancing").unwrap(), "0");
    let reason = |what: &str| {
        plan.skipped.iter().find(|skipped| skipped.what == what).map(|it| it.reason.as_str())
    };
    assert_eq!(reason("governor"), Some("this machine has no such file"));
}

#[test]
fn a_bad_profile_is_refused_with_its_line_and_column() {
    for (text, words) in [
        ("settings:\n  - file: proc/x\n", "p:2:11: must be a path"),
        ("settings:\n  - file: /a/../b\n", "p:2:11: must be a path"),
        ("settings:\n  - ethtool: rings.none\n", "p:2:14: `rings.none` is not a setting"),
        ("settings:\n  - file: /proc/sys/x\n    at_least: much\n", "p:3:15: is not a whole number"),
        ("settings:\n  - file: /proc/sys/x\n", "p:2:5: a setting needs"),
        ("settings:\n  - file: /etc/passwd\n", "p:2:11: names the file `/etc/passwd`; allowed:"),
        ("settings:\n  - file: /sys/devices/../../etc/passwd\n", "p:2:11: must be a path"),
        (
            "settings:\n  - file: /proc/sys/x\n    at_least: 9\n    at_most: 3\n",
            "p:4:5: `at_most: 3` comes after `at_least: 9`; allowed: one of ",
        ),
        (
            "settings:\n  - file: /proc/sys/x\n    ethtool: rings.rx\n",
            "p:3:5: names a second setting; allowed: ",
        ),
        (
            "settings:\n  - file: /proc/sys/x\n    at_least: 33554432\n    why: w\n    source: s\n  - file: /proc/sys/x\n    \
             at_most: 3\n    why: w\n    source: s\n",
            "p:6:5: `/proc/sys/x` has `at_least: 33554432` already, and here `at_most: 3`; allowed: ",
        ),
        ("sets: 1\n", "p:1:1: `sets` is not known; allowed: about, settings"),
    ] {
        let error = Profile::parse(text, "p", "p").unwrap_err().to_string();
        assert!(error.starts_with(words), "{text:?}: {error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn text_that_is_nothing_is_refused(text in "[\\PC\n]{1,200}") {
        // Random text is never a valid plan, map or profile, except that blank or comment lines are
        // an empty map or profile.
        prop_assert!(Plan::parse(&text).is_err());
        let is_blank = |line: &str| line.trim().is_empty() || line.trim().starts_with('#');
        let is_nothing = text.lines().all(is_blank);
        prop_assert!(is_nothing || IrqMap::parse(&text, "f").is_err());
        prop_assert!(is_nothing || Profile::parse(&text, "n", "f").is_err());
    }
}

/// A machine with one card of two ports, whose vectors both ports share, below a bond.
fn two_ports() -> Fixture {
    let mut machine = fixtures::Machine::with_cpus(8);
    machine.virtual_interfaces.push("bond0".to_owned());
    let name = |name: &str| (name.to_owned(), 0);
    machine.devices.push(fixtures::Device {
        path: "pci0000:00/0000:00:03.0".to_owned(),
        class: 0x02_0000,
        driver: "mlx4_core",
        interfaces: vec!["eth0".to_owned(), "eth1".to_owned()],
        vectors: vec![
            name("mlx4-async@pci:0000:00:03.0"),
            name("mlx4-1@0000:00:03.0"),
            name("mlx4-2@0000:00:03.0"),
            name("what"),
        ],
        ..Default::default()
    });
    let fixture = ready(machine.build());
    for lower in ["eth0", "eth1"] {
        let link = fixture.path().join(format!("sys/class/net/bond0/lower_{lower}"));
        std::os::unix::fs::symlink(format!("../{lower}"), link).unwrap();
    }
    fixture
}

#[test]
fn vectors_that_ports_share_are_planned_once_and_shown_as_shared() {
    let fixture = two_ports();
    let plan = planned(&fixture, Policy::Split, &PolicyOptions::default()).unwrap();
    let what: Vec<&str> = plan.wanted().map(|(_, what, _)| what).collect();
    assert_eq!(what, ["eth0,eth1 rx+tx 1", "eth0,eth1 rx+tx 2"]);
    let skipped: Vec<&str> = plan.skipped.iter().map(|one| one.reason.as_str()).collect();
    assert!(skipped[0].starts_with("serves the device and no queue"), "{skipped:?}");
    assert!(skipped[1].starts_with("has a name that says no purpose"), "{skipped:?}");
}

#[test]
fn a_bond_stands_for_its_members_and_the_plan_says_so() {
    let fixture = two_ports();
    let options = PolicyOptions { nics: vec!["bond0".to_owned()], ..PolicyOptions::default() };
    let plan = planned(&fixture, Policy::Split, &options).unwrap();
    assert_eq!(plan.wanted().count(), 2);
    assert!(plan.warnings[0].starts_with("bond0 sends and receives by eth0 and eth1"), "{plan:?}");
    let options = PolicyOptions { nics: vec!["lo".to_owned()], ..PolicyOptions::default() };
    let error = planned(&fixture, Policy::Split, &options).unwrap_err().to_string();
    assert!(error.contains("lo"), "{error}");
}

#[test]
fn where_nothing_else_is_left_cpu_0_and_isolated_cpus_are_used() {
    let options = PolicyOptions::default();
    for (name, used) in [("one-cpu", "0"), ("one-core-two-threads", "0-1"), ("isolated", "0")] {
        let fixture = ready(fixtures::kind(name).build());
        let plan = planned(&fixture, Policy::Split, &options).unwrap();
        let all = places(&plan).into_values().fold(CpuSet::new(), |all, one| all.union(&one));
        assert_eq!(all, cpus(used), "{name}");
    }
    let fixture = ready(fixtures::kind("isolated").build());
    let options = PolicyOptions { cpus: Some(cpus("4-7")), ..PolicyOptions::default() };
    let plan = planned(&fixture, Policy::Split, &options).unwrap();
    assert!(plan.warnings[0].starts_with("CPU 4-7: isolated at boot"), "{:?}", plan.warnings);
}

#[test]
fn the_option_that_leaves_no_cpu_is_the_one_that_is_named() {
    let fixture = ready(fixtures::kind("one-cpu").build());
    let workers: BTreeMap<String, CpuSet> = [("eth0".to_owned(), cpus("0"))].into();
    let (none, options) = (BTreeMap::new(), PolicyOptions::default());
    for (avoid, tx, rx, field) in [
        ("0", &none, &none, "--avoid `0`"),
        ("", &workers, &none, "--tx-bindings `0`"),
        ("", &none, &workers, "--rx-bindings `0`"),
    ] {
        let (tx_workers, rx_workers) = (tx.clone(), rx.clone());
        let options =
            PolicyOptions { avoid: cpus(avoid), tx_workers, rx_workers, ..options.clone() };
        let error = planned(&fixture, Policy::Split, &options).unwrap_err().to_string();
        let words = format!("{field}: leaves no CPU for `split`; allowed: some of 0, not all");
        assert!(error.contains(&words), "{error}");
    }
}

#[test]
fn queues_that_ports_share_count_once_for_their_node() {
    let fixture = ready(fixtures::kind("mlx4-two-ports").build());
    let plan = planned(&fixture, Policy::Split, &PolicyOptions::default()).unwrap();
    assert_eq!((plan.wanted().count(), plan.warnings.len()), (4, 0), "{:?}", plan.warnings);
}

#[test]
fn a_node_without_cpus_has_those_of_the_nearest_one() {
    let fixture = ready(fixtures::kind("cxl-memory").build());
    let options = PolicyOptions { nics: vec!["eth1".to_owned()], ..PolicyOptions::default() };
    let plan = planned(&fixture, Policy::Numa, &options).unwrap();
    assert!(plan.warnings.is_empty(), "{:?}", plan.warnings);
    let near = cpus("16-31");
    assert!(places(&plan).values().all(|cpus| cpus.is_subset(&near)), "{plan:?}");
}
