//! Bindings on machines built by code.

use polyrail_config::OTHERS;
use polyrail_host::bindings::{Bindings, Facts, LintId, Options, Role, check, suggest};
use polyrail_host::{CpuSet, Sysroot, fixtures};

/// Bindings that Google published for the A3-high; the last has the overlap of one of Google's manifests.
const TX: &str = "eth1:8-21,112-125;eth2:8-21,112-125;eth3:60-73,164-177;eth4:60-73,164-177";
const RX: &str = "eth1:22-35,126-139;eth2:22-35,126-139;eth3:74-87,178-191;eth4:74-87,178-191";
const RX_OVERLAPPING: &str =
    "eth1:22-35,124-139;eth2:22-35,124-139;eth3:74-87,178-191;eth4:74-87,178-191";

fn cpus(list: &str) -> CpuSet {
    CpuSet::parse_list(list).unwrap()
}

fn bindings(text: &str) -> Bindings {
    Bindings::parse(text).unwrap()
}

/// Returns kinds, interfaces and CPUs of the findings.
fn found(facts: &Facts, tx: &str, rx: &str) -> Vec<(LintId, String, String)> {
    let findings = check(facts, &bindings(tx), &bindings(rx));
    findings.into_iter().map(|f| (f.id, f.interface, f.cpus.to_string())).collect()
}

fn ids(facts: &Facts, tx: &str, rx: &str) -> Vec<LintId> {
    let mut ids: Vec<LintId> = found(facts, tx, rx).into_iter().map(|(id, ..)| id).collect();
    ids.dedup();
    ids
}

#[test]
fn what_is_written_is_what_tcpx_reads_back() {
    assert_eq!(bindings(TX).to_string(), TX);
    assert_eq!(bindings(" eth1 : 5, 3-4 ;eth10:7;").to_string(), "eth1:3-5;eth10:7-7");
    assert_eq!(bindings("eth1:1,3").to_string(), "eth1:1-1,3-3");
    assert_eq!(bindings("").to_string(), "");
    let both = bindings("eth1:1;eth10:2");
    assert_eq!(both.cpus("eth1"), Some(&cpus("1")));
    assert_eq!(both.cpus("eth10"), Some(&cpus("2")));
    assert_eq!(both.cpus("eth"), None);
    let with_others = bindings("5;eth1:1");
    assert_eq!(with_others.to_string(), "eth1:1-1;5-5");
    assert_eq!(with_others.cpus("eth"), Some(&cpus("5")));
    assert_eq!((with_others.all_cpus(), with_others.is_empty()), (cpus("1,5"), false));
    assert!(!bindings("5").is_empty());
}

#[test]
fn cpus_of_all_other_interfaces_are_checked_and_belong_to_no_node() {
    let fixture = fixtures::a3_high();
    let mut facts = Facts::read(&fixture.root()).unwrap();
    facts.irqs.clear();
    let others = |cpus: &str| (OTHERS.to_owned(), cpus.to_owned());
    let of = |id: LintId, (interface, cpus): (String, String)| (id, interface, cpus);
    // These CPUs are on both nodes.
    assert_eq!(found(&facts, "10-11,60-61", "12-13,62-63"), []);
    assert_eq!(found(&facts, "500", ""), [of(LintId::NoSuchCpu, others("500"))]);
    assert_eq!(found(&facts, "10", "10"), [of(LintId::TxRxOverlap, others("10"))]);
    assert_eq!(found(&facts, "eth1:10;10", ""), [of(LintId::SharedByInterfaces, others("10"))]);
    assert_eq!(found(&facts, "eth1:10", "12"), [of(LintId::UnequalCounts, others(""))]);
    assert_eq!(found(&facts, "10;eth1:11", "eth1:12"), [of(LintId::UnequalCounts, others(""))]);
}

#[test]
fn the_suggestion_for_the_a3_high_is_as_large_as_googles_and_overlaps_nothing() {
    let fixture = fixtures::a3_high();
    let mut facts = Facts::read(&fixture.root()).unwrap();
    let suggestion = suggest(&facts.topology, &Options::default());
    assert_eq!(
        suggestion.tx.to_string(),
        "eth1:8-14,112-118;eth2:15-21,119-125;eth3:60-66,164-170;eth4:67-73,171-177"
    );
    assert_eq!(
        suggestion.rx.to_string(),
        "eth1:22-28,126-132;eth2:29-35,133-139;eth3:74-80,178-184;eth4:81-87,185-191"
    );
    assert!(suggestion.notes.is_empty(), "{:?}", suggestion.notes);
    // The same cores per node and role as published.
    assert_eq!(suggestion.tx.all_cpus(), bindings(TX).all_cpus());
    assert_eq!(suggestion.rx.all_cpus(), bindings(RX).all_cpus());
    for share in &suggestion.nodes {
        let roles = [&share.app, &share.tx, &share.rx, &share.irq];
        let together = roles.iter().fold(CpuSet::new(), |all, role| all.union(role));
        // Every CPU of the node has one role, and interrupts have separate cores.
        assert_eq!(together, facts.topology.node(share.node.unwrap()).unwrap().cpus);
        assert_eq!(roles.iter().map(|role| role.len()).sum::<usize>(), together.len());
        assert_eq!(share.irq.len(), 32);
    }
    // With interrupts placed as suggested, nothing is left to report.
    for place in &mut facts.irqs {
        let node = facts.topology.nic(&place.interface).unwrap().node;
        let share = suggestion.nodes.iter().find(|share| share.node == node).unwrap();
        place.cpus = cpus(&share.irq.first().unwrap().to_string());
    }
    assert_eq!(check(&facts, &suggestion.tx, &suggestion.rx), []);
}

#[test]
fn shared_ranges_are_exactly_the_published_ones() {
    let fixture = fixtures::a3_high();
    let facts = Facts::read(&fixture.root()).unwrap();
    let options = Options { shared: true, ..Options::default() };
    let suggestion = suggest(&facts.topology, &options);
    assert_eq!((suggestion.tx.to_string(), suggestion.rx.to_string()), (TX.into(), RX.into()));
}

#[test]
fn the_published_overlap_is_found_with_its_cpus() {
    let fixture = fixtures::a3_high();
    let mut facts = Facts::read(&fixture.root()).unwrap();
    facts.irqs.clear();
    let overlaps: Vec<_> = found(&facts, TX, RX_OVERLAPPING)
        .into_iter()
        .filter(|(id, ..)| *id == LintId::TxRxOverlap)
        .map(|(_, interface, cpus)| (interface, cpus))
        .collect();
    // Each of two sending interfaces overlaps with each of two receiving ones.
    assert_eq!(overlaps.len(), 4);
    assert!(overlaps.iter().all(|(_, cpus)| cpus == "124-125"));
    assert_eq!(ids(&facts, TX, RX_OVERLAPPING).last(), Some(&LintId::UnequalCounts));
    assert_eq!(ids(&facts, TX, RX), [LintId::SharedByInterfaces]);
}

#[test]
fn interrupts_inside_a_range_are_found() {
    let fixture = fixtures::a3_high();
    let facts = Facts::read(&fixture.root()).unwrap();
    let findings = check(&facts, &bindings("eth1:8-21,112-125"), &Bindings::default());
    let inside: Vec<_> = findings.iter().filter(|f| f.id == LintId::IrqInside).collect();
    // Before Linux 6.17 the interrupts of every gVNIC are on CPUs 0 to 15.
    assert_eq!((inside.len(), inside[0].cpus.to_string().as_str()), (1, "8-15"));
    assert_eq!((inside[0].role, inside[0].is_error), (Some(Role::Tx), false));
    assert!(inside[0].message.contains("eth0, eth1, eth2, eth3, eth4"), "{}", inside[0].message);
}

#[test]
fn every_other_fault_of_a_binding_is_found() {
    let fixture = fixtures::a3_high();
    let mut facts = Facts::read(&fixture.root()).unwrap();
    facts.irqs.clear();
    for (tx, rx, id, interface, list) in [
        ("eth9:8", "", LintId::UnknownInterface, "eth9", ""),
        ("eth1:8,207-300", "", LintId::NoSuchCpu, "eth1", "208-300"),
        ("eth3:8-9,60", "", LintId::OffNode, "eth3", "8-9"),
        ("eth1:8", "eth1:112", LintId::SiblingOfOtherRole, "eth1", "112"),
        ("eth1:8", "eth2:8", LintId::TxRxOverlap, "eth1", "8"),
        ("eth1:8-9;eth2:9-10", "", LintId::SharedByInterfaces, "eth2", "9"),
        ("eth1:8-9", "eth1:10", LintId::UnequalCounts, "eth1", ""),
        ("eth1:8;eth2:9", "eth1:10", LintId::UnequalCounts, "eth2", ""),
        ("eth1:0,2,4,6,8,10,12,14,16", "", LintId::TooManyForTcpx, "eth1", "0,2,4,6,8,10,12,14,16"),
    ] {
        let expected = (id, interface.to_owned(), list.to_owned());
        let found = found(&facts, tx, rx);
        assert!(found.contains(&expected), "{tx} {rx}: {found:?}");
    }
    let many: String = (0..17).map(|at| format!("e{at}:{at};")).collect();
    assert!(ids(&facts, &many, "").contains(&LintId::TooManyForTcpx));
    assert_eq!(ids(&facts, "eth1:8-9,112-113", "eth1:10-11,114-115"), []);
    // A name that begins another name is another interface.
    let names = found(&facts, "eth:8;eth10:9", "");
    assert_eq!(
        names.iter().map(|(_, name, _)| name.as_str()).collect::<Vec<_>>(),
        ["eth", "eth10"]
    );
}

#[test]
fn offline_cpus_and_those_outside_the_cpuset_are_errors() {
    let fixture = fixtures::cpu_holes();
    let mut facts = Facts::read(&fixture.root()).unwrap();
    facts.topology.allowed_cpus = Some(cpus("0,4"));
    let findings = check(&facts, &bindings("eth0:0-3;lo:4-5"), &Bindings::default());
    let errors: Vec<_> = findings
        .iter()
        .filter(|finding| finding.is_error)
        .map(|finding| (finding.id, finding.cpus.to_string()))
        .collect();
    let expected =
        [(LintId::Offline, "2-3"), (LintId::OutsideCpuset, "1"), (LintId::OutsideCpuset, "5")];
    assert_eq!(errors, expected.map(|(id, cpus)| (id, cpus.to_owned())));
    // Loopback has no device, but is a known interface.
    assert!(findings.iter().all(|finding| finding.id != LintId::UnknownInterface));
}

#[test]
fn suggestions_leave_out_what_cannot_be_used() {
    let fixture = fixtures::cpu_holes();
    let mut topology = Facts::read(&fixture.root()).unwrap().topology;
    let suggestion = suggest(&topology, &Options::default());
    // Node 0 has the cores 0+8, 1, 10 and 11 left; node 2 has 4 to 7.
    assert_eq!(suggestion.tx.to_string(), "eth0:1-1;eth1:5-5");
    assert_eq!(suggestion.rx.to_string(), "eth0:10-10;eth1:6-6");
    topology.allowed_cpus = Some(cpus("0-1,8"));
    let options = Options { avoid: cpus("8"), ..Options::default() };
    let suggestion = suggest(&topology, &options);
    assert_eq!(suggestion.tx.to_string(), "eth0:1-1");
    assert!(suggestion.notes[0].contains("2 usable cores"), "{:?}", suggestion.notes);
    assert!(suggestion.notes[1].contains("no CPU near eth1"), "{:?}", suggestion.notes);
    topology.cpus.isolated = cpus("0-15");
    assert!(suggest(&topology, &Options::default()).tx.is_empty());
}

#[test]
fn an_interface_of_unknown_node_gets_cpus_only_where_there_is_one_node() {
    let fixture = fixtures::unknown_nodes();
    let topology = Facts::read(&fixture.root()).unwrap().topology;
    let suggestion = suggest(&topology, &Options::default());
    assert!(suggestion.tx.is_empty() && suggestion.nodes.is_empty());
    assert!(suggestion.notes[0].contains("does not tell its node"), "{:?}", suggestion.notes);

    let fixture = fixtures::laptop();
    let topology = Facts::read(&fixture.root()).unwrap().topology;
    let suggestion = suggest(&topology, &Options::default());
    assert!(suggestion.tx.is_empty(), "its only interface is down");
    let options =
        Options { interfaces: vec!["enp0s31f6".into(), "eth7".into()], ..Options::default() };
    let suggestion = suggest(&topology, &options);
    assert_eq!(suggestion.tx.to_string(), "enp0s31f6:1-1,5-5");
    assert_eq!(suggestion.notes, ["eth7 is not a network card of this machine"]);
}

#[test]
fn more_interfaces_than_cores_share_them_and_it_is_said() {
    let mut machine = fixtures::Machine::with_cpus(4);
    for slot in 1..=3 {
        machine.devices.push(fixtures::Device {
            path: format!("pci0000:00/0000:00:0{slot}.0"),
            class: 0x02_0000,
            interfaces: vec![format!("eth{slot}")],
            ..Default::default()
        });
    }
    let fixture = machine.build();
    let topology = Facts::read(&fixture.root()).unwrap().topology;
    let suggestion = suggest(&topology, &Options::default());
    assert_eq!(suggestion.tx.to_string(), "eth1:1-1;eth2:1-1;eth3:1-1");
    assert!(suggestion.notes[0].contains("fewer cores"), "{:?}", suggestion.notes);
}

#[test]
fn this_machine_gets_a_suggestion_without_errors() {
    let facts = Facts::read(&Sysroot::live()).unwrap();
    let suggestion = suggest(&facts.topology, &Options::default());
    let findings = check(&facts, &suggestion.tx, &suggestion.rx);
    assert!(findings.iter().all(|finding| !finding.is_error), "{findings:?}");
}
