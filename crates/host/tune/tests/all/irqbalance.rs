//! irqbalance is stopped before a plan is carried out, and started again after it is undone.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use polyrail_host::Sysroot;
use polyrail_host::fixtures::Fixture;
use polyrail_tune::irq::{Policy, stop_irqbalance};
use polyrail_tune::{
    ApplyOptions, Machine, Plan, RealDisk, StateDir, SysMachine, Target, TuneError, Which, apply,
    reset, verify,
};

use crate::common::{Standin, files, plan_of, two_nics};

const SERVICE: Target = Target::IrqbalanceService;

/// Two NICs, and irqbalance as a service.
fn with_service() -> Fixture {
    let fixture = two_nics(24);
    fixture.write("/proc/812/comm", "irqbalance\n");
    fixture.write("/proc/812/stat", &format!("812 (irqbalance) S {}4711 0\n", "0 ".repeat(18)));
    fixture.write("/proc/812/cgroup", "0::/system.slice/irqbalance.service\n");
    fixture
}

fn standin(fixture: &Fixture) -> Standin {
    Standin::new(fixture.root(), Target::is_balancer).with(SERVICE, "running")
}

#[test]
fn it_is_never_touched_unless_asked_but_warned_of() {
    let fixture = with_service();
    let mut plan = plan_of(&mut standin(&fixture), Policy::Split);
    plan.warn_of_rivals(&fixture.root());
    assert!(plan.wanted().all(|(target, ..)| !target.is_balancer()));
    assert!(plan.warnings.iter().any(|warning| warning.contains("--irqbalance stop")));

    let mut plan = stop_irqbalance(&fixture.root(), plan_of(&mut standin(&fixture), Policy::Split));
    plan.warn_of_rivals(&fixture.root());
    assert!(plan.warnings.iter().all(|warning| !warning.contains("irqbalance")), "{plan:?}");
}

#[test]
fn it_stops_first_and_starts_again_last() {
    let fixture = with_service();
    let folder = tempfile::tempdir().unwrap();
    let state = StateDir::new(folder.path());
    let mut machine = standin(&fixture);
    let before = files(&fixture.root());
    let plan = stop_irqbalance(&fixture.root(), plan_of(&mut machine, Policy::Split));
    assert_eq!(Plan::parse(&plan.to_json()).unwrap(), plan);
    // Adding it twice changes nothing.
    assert_eq!(stop_irqbalance(&fixture.root(), plan.clone()), plan);
    apply(&mut machine, &mut RealDisk, &state, &plan, &ApplyOptions::default()).unwrap();
    assert_eq!(machine.log.first(), Some(&SERVICE));
    assert_eq!(machine.value(&SERVICE), Some("stopped"));
    let all = machine.log.len();
    assert!(all > 10);

    // When irqbalance is started by hand, the plan does not hold any more.
    machine = machine.with(SERVICE, "running");
    let checked = verify(&mut machine, &plan, &[], std::time::Duration::ZERO).unwrap();
    let service = checked.iter().find(|one| one.target == SERVICE).unwrap();
    assert_eq!(service.state.word(), "drift");
    machine = machine.with(SERVICE, "stopped");

    machine.log.clear();
    reset(&mut machine, &mut RealDisk, &state, "irq", &Which::Latest, false).unwrap();
    assert_eq!(machine.log.last(), Some(&SERVICE));
    assert_eq!(machine.value(&SERVICE), Some("running"));
    assert_eq!(files(&fixture.root()), before);
}

#[test]
fn a_service_that_can_not_be_stopped_keeps_the_plan_from_being_carried_out() {
    let fixture = with_service();
    let folder = tempfile::tempdir().unwrap();
    let mut machine = Standin { refuses: Some(5), ..standin(&fixture) };
    let before = files(&fixture.root());
    let plan = stop_irqbalance(&fixture.root(), plan_of(&mut machine, Policy::Split));
    let state = StateDir::new(folder.path());
    let error = apply(&mut machine, &mut RealDisk, &state, &plan, &ApplyOptions::default());
    assert!(matches!(error.unwrap_err(), TuneError::RolledBack { .. }));
    assert_eq!(files(&fixture.root()), before);
}

#[test]
fn none_that_runs_is_nothing_to_stop() {
    let fixture = two_nics(24);
    let plan = stop_irqbalance(&fixture.root(), plan_of(&mut standin(&fixture), Policy::Split));
    assert!(plan.wanted().all(|(target, ..)| !target.is_balancer()));
    assert!(plan.warnings.iter().any(|warning| warning.contains("nothing to stop")));
}

#[test]
fn a_plan_can_stop_nothing_else() {
    let fixture = with_service();
    let plan = stop_irqbalance(&fixture.root(), plan_of(&mut standin(&fixture), Policy::Split));
    let text = plan.to_json();
    for (from, to, words) in [
        ("\"new\": \"stopped\"", "\"new\": \"masked\"", "irqbalance `masked`; allowed"),
        ("irqbalance_service", "sshd_service", "unknown variant `sshd_service`"),
    ] {
        let error = Plan::parse(&text.replace(from, to)).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn a_process_without_a_service_is_paused_and_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("irqbalance");
    fs::write(&program, "#!/bin/sh\nread line\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let mut child = Command::new(&program).stdin(Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    let live = Sysroot::live();
    let until = |word: &str| {
        let found = || live.read(format!("/proc/{pid}/{word}")).unwrap();
        while word == "comm" && found() != "irqbalance" {
            std::thread::yield_now();
        }
        found()
    };
    until("comm");
    let stat = until("stat");
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    let target = Target::IrqbalanceProcess { pid, start_ticks: fields[19].parse().unwrap() };
    let mut machine = SysMachine::new(live);
    let now = |machine: &mut SysMachine| machine.read(&target).unwrap();
    assert_eq!(now(&mut machine).as_deref(), Some("running"));
    machine.write(&target, "stopped").unwrap();
    assert_eq!(now(&mut machine).as_deref(), Some("stopped"));
    machine.write(&target, "running").unwrap();
    assert_eq!(now(&mut machine).as_deref(), Some("running"));
    // Another process may have taken over the PID: it must get no signal.
    let later = Target::IrqbalanceProcess { pid, start_ticks: 1 };
    let error = machine.write(&later, "stopped").unwrap_err();
    assert!(error.to_string().contains("can't be stopped or started: No such process"), "{error}");
    assert_eq!(now(&mut machine).as_deref(), Some("running"));

    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(now(&mut machine), None);
}
