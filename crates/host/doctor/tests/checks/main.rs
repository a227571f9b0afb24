//! Runs each check on a healthy host, where it stays silent, and on a host with a single fault,
//! where it fires. The hosts are folders of files.

mod damaged;
mod faults;
mod host;
mod kinds;

use std::collections::BTreeSet;
use std::time::Duration;

use polyrail_doctor::{
    Answer, Answers, CHECKS, CheckReport, Context, Options, Report, RingProbe, Status, examine,
    plan_fix,
};
use polyrail_host::bindings::Bindings;
use polyrail_host::{CpuSet, Sysroot, fixtures};
use polyrail_tune::{ApplyOptions, RealDisk, StateDir, SysMachine, Target, Which, apply, reset};

use crate::faults::FAULTS;
use crate::host::{Setup, well, with_tcpx};

fn ids(report: &Report, status: Status) -> BTreeSet<String> {
    report.with(status).map(|check| check.id.clone()).collect()
}

fn find<'a>(report: &'a Report, id: &str) -> &'a CheckReport {
    report.checks.iter().find(|check| check.id == id).unwrap_or_else(|| panic!("no check {id}"))
}

#[test]
fn a_host_that_is_well_has_no_findings_and_nothing_is_unknown() {
    let report = well().report();
    assert_eq!(ids(&report, Status::Finding), BTreeSet::new(), "{}", report.text());
    assert_eq!(ids(&report, Status::Unknown), BTreeSet::new(), "{}", report.text());
    let tcpx = ["devmem-landing", "tcpx-daemon", "tcpx-plugin"];
    let not_applicable =
        ["arp-flux", "bindings", "irq-gve-pattern"].iter().chain(&tcpx).map(|id| (*id).into());
    assert_eq!(ids(&report, Status::NotApplicable), not_applicable.collect());
    for check in report.with(Status::Clean) {
        assert!(!check.evidence.is_empty(), "{} is clean without having looked", check.id);
    }
}

#[test]
fn bindings_that_fit_the_machine_are_clean() {
    let mut setup = well();
    let bindings = ["eth0:4-5;eth1:12-13", "eth0:6-7;eth1:14-15"];
    setup.options.bindings = Ok(bindings.map(|text| Bindings::parse(text).unwrap()));
    let report = setup.report();
    let check = find(&report, "bindings");
    assert_eq!((check.status, check.evidence.len()), (Status::Clean, 2), "{check:?}");
}

#[test]
fn bindings_that_are_only_slower_are_no_finding_and_wrong_settings_are_unknown() {
    let mut setup = well();
    let of_another_node = Bindings::parse("eth0:12-13").unwrap();
    setup.options.bindings = Ok([of_another_node, Bindings::default()]);
    let report = setup.report();
    let check = find(&report, "bindings");
    assert_eq!(check.status, Status::Clean, "{check:?}");
    let warning = &check.evidence[1];
    assert!(warning.path == "eth0" && warning.value.contains("12-13"), "{check:?}");
    setup.options.bindings = Err("channels `many`: is no number".into());
    let report = setup.report();
    let check = find(&report, "bindings");
    assert_eq!(check.status, Status::Unknown);
    assert_eq!(check.unknown, ["channels `many`: is no number"]);
}

#[test]
fn a_plugin_that_is_not_installed_or_can_t_be_tried_is_no_finding() {
    let mut setup = well();
    setup.answers.nccl_plugin = Some(Answer::Absent("no plugin is installed".into()));
    setup.answers.nixl_backend = Some(Answer::Unknown("python does not run".into()));
    let report = setup.report();
    assert_eq!(ids(&report, Status::Finding), BTreeSet::new(), "{}", report.text());
    let plugin = find(&report, "nccl-plugin");
    assert_eq!(plugin.not_applicable.as_deref(), Some("no plugin is installed"));
    assert_eq!(find(&report, "nixl-backend").unknown, ["python does not run"]);
    // A copy of a machine runs no plugins.
    setup.answers = Answers::default();
    assert_eq!(find(&setup.report(), "nixl-backend").status, Status::NotApplicable);
}

#[test]
fn a_host_with_gpudirect_tcpx_that_is_well_tells_what_it_has() {
    let mut setup = well();
    with_tcpx(&mut setup);
    let report = setup.report();
    assert_eq!(ids(&report, Status::Finding), BTreeSet::new(), "{}", report.text());
    let told = |id: &str| {
        let check = find(&report, id);
        assert_eq!(check.status, Status::Clean, "{id}");
        check.evidence.iter().map(|it| it.value.clone()).collect::<Vec<_>>()
    };
    assert_eq!(told("tcpx-plugin"), ["GPUDirect-TCPX, tables v7"]);
    assert_eq!(told("tcpx-daemon"), ["get_gpu_fd_0000:11:00.0", "get_gpu_fd_0000:21:00.0"]);
    let counters = "rx_devmem_pkts 900000, rx_hsplit_pkt 1000000, rx_hsplit_unsplit_pkt 9";
    assert_eq!(told("devmem-landing"), [counters; 2]);
    // An image's own kernel has the counter, which proves more than the release number.
    setup.put("/proc/sys/kernel/osrelease", "5.15.146");
    assert_eq!(find(&setup.report(), "devmem-driver").status, Status::Clean);
    // A copy made before the search for plugins existed.
    setup.probes.plugins = None;
    let unknown = ids(&setup.report(), Status::Unknown);
    assert_eq!(unknown, ["tcpx-daemon", "tcpx-plugin"].map(String::from).into());
    with_tcpx(&mut setup);
    setup.probes.tcpx_sockets = Some(Vec::new());
    let report = setup.report();
    let finding = &find(&report, "tcpx-daemon").findings[0];
    assert_eq!(finding.what, "nobody listens on the socket rx_rule_manager");
}

#[test]
fn each_fault_is_found_by_its_check_and_by_no_other() {
    for (id, companions, fault) in FAULTS {
        let mut setup = well();
        fault(&mut setup);
        let report = setup.report();
        let mut expected: BTreeSet<String> = companions.iter().map(|id| (*id).into()).collect();
        expected.insert((*id).into());
        assert_eq!(ids(&report, Status::Finding), expected, "{id}\n{}", report.text());
        let check = find(&report, id);
        for finding in &check.findings {
            assert!(!finding.evidence.is_empty(), "{id} has no evidence");
            assert!(finding.changes.is_empty() || check.needs_root, "{id}: a fix of it is refused");
            for change in &finding.changes {
                assert_ne!(change.from.as_ref(), Some(&change.to), "{id} changes nothing");
                if let Target::File { path } = &change.target {
                    assert!(path.starts_with("/proc/") || path.starts_with("/sys/"), "{path}");
                }
            }
        }
        assert!(report.text().contains(id) && report.text().contains(&check.findings[0].what));
    }
}

#[test]
fn every_check_has_a_fault_here() {
    let with: BTreeSet<&str> = FAULTS.iter().map(|(id, _, _)| *id).collect();
    let all: BTreeSet<&str> = CHECKS.iter().copied().flatten().map(|check| check.id).collect();
    assert_eq!(all, with);
}

#[test]
fn without_files_no_check_is_clean() {
    let host = well().machine.build();
    for folder in ["proc", "sys/kernel", "sys/bus", "sys/class", "sys/fs"] {
        std::fs::remove_dir_all(host.path().join(folder))
            .or_else(|error| {
                // Some of the folders don't exist in the first place.
                if error.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
            })
            .unwrap();
    }
    let options =
        Options { devmem: true, workers: Some(CpuSet::range(0, 3)), ..Options::default() };
    let report = examine(&Context::read(&host.root(), options).unwrap());
    for status in [Status::Clean, Status::Finding] {
        assert_eq!(ids(&report, status), BTreeSet::new(), "{}", report.text());
    }
}

#[test]
fn nonsense_in_files_is_unknown_and_never_clean() {
    let mut setup = well();
    let keep = ["/proc/self/cgroup", "/proc/1/comm", "/proc/net/route"];
    for (path, text) in &mut setup.files {
        if path.starts_with("/proc/") && !keep.contains(&path.as_str()) {
            *text = "nonsense".into();
        }
    }
    let report = setup.report();
    for check in report.with(Status::Clean) {
        let data = CHECKS.iter().copied().flatten().find(|data| data.id == check.id).unwrap();
        let is_nonsense =
            |path: &&&str| setup.files.get(**path).is_some_and(|text| text == "nonsense");
        // A congestion control may have any name but bbr.
        let reads_sense = data.reads.iter().any(|path| !is_nonsense(&path));
        assert!(reads_sense || check.id == "bbr-without-fq", "{}: {:?}", check.id, check.evidence);
    }
    assert!(report.summary.unknown >= 15, "{:?}", report.summary);
}

#[test]
fn a_part_that_is_unknown_is_told_next_to_a_finding() {
    let mut setup = well();
    setup.nic("eth0").rx_ring = Some(RingProbe { now: 128, max: Some(1024) });
    let probe = setup.nic("eth1");
    probe.rx_ring = None;
    probe.errors.insert("rings".into(), "Operation not supported".into());
    let report = setup.report();
    let check = find(&report, "rings-small");
    assert_eq!((check.status, check.findings.len()), (Status::Finding, 1));
    assert_eq!(check.unknown, ["eth1: Operation not supported"]);
    assert!(
        report.text().contains("not known: eth1: Operation not supported"),
        "{}",
        report.text()
    );
}

#[test]
fn findings_come_in_order_of_what_they_cost() {
    let mut setup = well();
    setup.put("/proc/sys/net/ipv4/tcp_slow_start_after_idle", "1");
    setup.put("/proc/sys/net/ipv4/tcp_congestion_control", "bbr");
    setup.put("/proc/sys/net/ipv4/tcp_sack", "0");
    let report = setup.report();
    let order: Vec<&str> = report.with(Status::Finding).map(|check| check.id.as_str()).collect();
    assert_eq!(order, ["tcp-features-off", "bbr-without-fq", "slow-start-after-idle"]);
    let text = report.text();
    let command = "$ sysctl -w net.ipv4.tcp_congestion_control='cubic'";
    assert!(
        text.contains(command) && text.contains("or: polyrail host apply fix bbr-without-fq"),
        "{text}"
    );
}

#[test]
fn a_report_reads_back_as_itself() {
    let mut setup = well();
    setup.put("/proc/sys/net/ipv4/tcp_sack", "0");
    let report = setup.report();
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["schema_version"], 1);
    assert_eq!(json["checks"][0]["id"], "tcp-features-off");
    assert_eq!(json["checks"][0]["status"], "finding");
    assert_eq!(json["checks"][0]["cost"], "breaks");
    let change = &json["checks"][0]["findings"][0]["changes"][0];
    assert_eq!(change["target"]["path"], "/proc/sys/net/ipv4/tcp_sack");
    assert_eq!((&change["from"], &change["to"]), (&"0".into(), &"1".into()));
    assert_eq!(serde_json::from_value::<Report>(json).unwrap(), report);
}

#[test]
fn the_gve_pattern_is_found_on_a_machine_like_a3_high() {
    let host = fixtures::a3_high();
    host.write("/proc/sys/kernel/osrelease", "6.12.55+\n");
    let report = examine(&Context::read(&host.root(), Options::default()).unwrap());
    let subjects = |id: &str| -> Vec<String> {
        find(&report, id).findings.iter().filter_map(|finding| finding.subject.clone()).collect()
    };
    let pattern = subjects("irq-gve-pattern");
    assert!(pattern.contains(&"eth3".into()) && pattern.contains(&"eth4".into()), "{pattern:?}");
    assert_eq!(subjects("irq-off-node"), ["eth3", "eth4"], "the others are at node 0");
}

#[test]
fn the_interface_of_the_host_itself_is_not_compared_with_the_rails() {
    let host = fixtures::a3_high();
    for nic in 1..=4 {
        host.write(&format!("/sys/class/net/eth{nic}/mtu"), "8244");
    }
    host.write("/sys/class/net/eth0/mtu", "1460");
    let report = examine(&Context::read(&host.root(), Options::default()).unwrap());
    // eth0 has half the speed and another MTU on purpose.
    for id in ["speed-mismatch", "mtu-mismatch"] {
        let check = find(&report, id);
        assert_eq!(check.status, Status::Clean, "{}", report.text());
        assert!(check.evidence.iter().any(|seen| seen.value.contains("not compared")));
    }
    // All rails on the same CPUs make one finding, not one for each pair.
    let shared = &find(&report, "irq-nics-share-cpu").findings;
    assert_eq!(shared.len(), 1, "{}", report.text());
    assert_eq!(shared[0].what, "4 rails interrupt the same 16 CPUs, 0-15");
    assert_eq!(shared[0].subject.as_deref(), Some("eth1,eth2,eth3,eth4"));
    // An interface that the user names is a rail like any other.
    let named: Vec<String> = (0..5).map(|nic| format!("eth{nic}")).collect();
    let options = Options { interfaces: named, ..Options::default() };
    let report = examine(&Context::read(&host.root(), options).unwrap());
    assert_eq!(find(&report, "speed-mismatch").findings.len(), 1);
}

#[test]
fn rails_that_share_in_different_ways_are_told_apart() {
    let mut setup = well();
    setup.machine.devices[2].node = 0;
    // Only CPU 3 is shared.
    setup.vectors(1, [3, 4, 5, 6]);
    let report = setup.report();
    let findings = &find(&report, "irq-nics-share-cpu").findings;
    assert_eq!(findings.len(), 1);
    assert_eq!(findings[0].what, "2 rails interrupt CPU 3");
}

#[test]
fn each_offload_that_is_off_is_named_with_the_switch_that_fixes_it() {
    let mut setup = well();
    let offloads = setup.nic("eth0").offloads.as_mut().unwrap();
    (offloads.tso, offloads.gso) = (false, false);
    setup.nic("eth1").offloads = None;
    let report = setup.report();
    let check = find(&report, "offloads-off");
    assert_eq!(check.findings.len(), 1);
    let finding = &check.findings[0];
    let what = "tcp-segmentation-offload, generic-segmentation-offload are off";
    assert_eq!((finding.what.as_str(), finding.subject.as_deref()), (what, Some("eth0")));
    assert_eq!(finding.commands, ["ethtool -K eth0 tso on gso on"]);
    assert_eq!(check.unknown.len(), 1, "the other did not tell: {:?}", check.unknown);
}

#[test]
fn the_odd_host_of_three_is_named_with_its_fault() {
    let mut odd = well();
    odd.put("/sys/class/net/eth1/mtu", "1500");
    odd.put("/proc/sys/kernel/hostname", "odd");
    let reports = [well().report(), odd.report(), well().report()];
    let comparison = polyrail_doctor::fleet::compare(&reports).unwrap();
    assert_eq!(comparison.odd.first().map(|(host, _)| host.as_str()), Some("odd"));
    let names: Vec<&str> = comparison.differences.iter().map(|d| d.what.as_str()).collect();
    assert!(names.contains(&"eth1: MTU") && names.contains(&"check mtu-mismatch"), "{names:?}");
}

#[test]
fn this_machine_is_examined_and_what_is_found_names_files_that_say_so() {
    let root = Sysroot::live();
    let report = examine(&Context::read(&root, Options::default()).unwrap());
    let Report { summary, .. } = &report;
    assert_eq!(
        summary.findings + summary.clean + summary.unknown + summary.not_applicable,
        report.checks.len()
    );
    assert!(summary.clean >= 10, "{}", report.text());
    for finding in report.with(Status::Finding).flat_map(|check| &check.findings) {
        for evidence in &finding.evidence {
            let is_setting =
                evidence.path.starts_with("/proc/sys/") && !evidence.path.contains(':');
            if is_setting {
                assert_eq!(root.read(&evidence.path).unwrap(), evidence.value, "{}", evidence.path);
            }
        }
    }
}

#[test]
fn a_hint_names_a_command_only_if_that_finds_the_same() {
    let hint = |setup: &Setup, id: &str| {
        let (text, or) = (setup.report().text(), format!("    or: polyrail host apply fix {id}"));
        text.lines().find_map(|line| line.strip_prefix(&or)).map(str::to_owned)
    };
    let mut setup = well();
    setup.put("/proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t1048576");
    let id = "tcp-receive-buffer";
    assert_eq!(hint(&setup, id).as_deref(), Some(" --dry-run"));
    setup.options.interfaces = vec!["eth0".into(), "eth1".into()];
    assert_eq!(hint(&setup, id).as_deref(), Some(" --nic eth0,eth1 --dry-run"));
    // `host apply fix` assumes the default round-trip time.
    setup.options.rtt = Duration::from_millis(10);
    assert_eq!(hint(&setup, id), None);
    setup.put("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]");
    setup.put("/proc/meminfo", "HugePages_Total: 0\n");
    assert!(hint(&setup, "hugepages-off").is_some());
}

#[test]
fn a_finding_is_fixed_and_taken_back_byte_for_byte() {
    let mut setup = well();
    let path = "/proc/sys/net/ipv4/tcp_rmem";
    let old = "4096\t131072\t1048576";
    setup.put(path, old);
    setup.put("/proc/sys/kernel/random/boot_id", "0e3f");
    let (host, context) = setup.build();
    let root = host.root();
    let mut machine = SysMachine::new(root.clone());
    let plan = plan_fix(&examine(&context), "tcp-receive-buffer", &root, &mut machine).unwrap();
    assert_eq!((plan.name.as_str(), plan.changes.len()), ("doctor tcp-receive-buffer", 1));
    assert_eq!(plan.changes[0].old, old);

    let state = StateDir::new(host.path().join("state"));
    apply(&mut machine, &mut RealDisk, &state, &plan, &ApplyOptions::default()).unwrap();
    let report = examine(&Context::read(&root, Options::default()).unwrap());
    assert_eq!(find(&report, "tcp-receive-buffer").status, Status::Clean, "{}", report.text());

    let which = Which::Latest;
    let restored = reset(&mut machine, &mut RealDisk, &state, "doctor", &which, false).unwrap();
    assert_eq!(restored.len(), 1);
    assert_eq!(root.read(path).unwrap(), old);
}

#[test]
fn transparent_huge_pages_are_fixed_by_the_word_that_the_kernel_takes() {
    let mut setup = well();
    setup.put("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]");
    setup.put("/proc/meminfo", "HugePages_Total: 0\n");
    setup.put("/proc/sys/kernel/random/boot_id", "0e3f");
    let (host, context) = setup.build();
    let root = host.root();
    let plan =
        plan_fix(&examine(&context), "hugepages-off", &root, &mut SysMachine::new(root.clone()));
    let change = plan.unwrap().changes.remove(0);
    assert_eq!((change.old.as_str(), change.new.as_str()), ("never", "madvise"));
}

#[test]
fn what_is_well_or_no_setting_is_not_fixed() {
    let mut setup = well();
    setup.put("/proc/sys/kernel/random/boot_id", "0e3f");
    setup.put("/sys/class/net/eth1/operstate", "down");
    let (host, context) = setup.build();
    let (root, report) = (host.root(), examine(&context));
    let refused = |id: &str| {
        let mut machine = SysMachine::new(root.clone());
        plan_fix(&report, id, &root, &mut machine).unwrap_err().to_string()
    };
    let unknown = refused("tcp-features");
    assert!(unknown.starts_with("check `tcp-features`: does not exist; allowed: "), "{unknown}");
    assert_eq!(
        refused("bbr-without-fq"),
        "check `bbr-without-fq` found nothing to fix: all is well"
    );
    let message = refused("link-down");
    assert!(
        message.starts_with("check `link-down` can't be fixed by a setting: eth1: "),
        "{message}"
    );
}

#[test]
fn the_documentation_lists_every_check() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/doctor.md");
    let text = std::fs::read_to_string(path).unwrap();
    for check in CHECKS.iter().copied().flatten() {
        let row = format!("| `{}` | {} | {} |", check.id, check.title, check.cost.words());
        assert!(text.contains(&row), "docs/doctor.md lacks the row\n{row}");
    }
}
