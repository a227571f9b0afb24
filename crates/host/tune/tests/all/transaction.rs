//! A plan is carried out completely or not at all, whatever goes wrong.

use std::cell::Cell;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use polyrail_tune::irq::Policy;
use polyrail_tune::{
    ApplyOptions, Blame, Effect, Machine, Plan, RealDisk, State, StateDir, Status, TuneError,
    Which, apply, is_good, reset, verify,
};

use crate::common::{FullDisk, Shaky, Trouble, files, named, plan_of, two_nics};

const EIO: i32 = 5;
const EPERM: i32 = 1;
const EACCES: i32 = 13;
const EBUSY: i32 = 16;
const EINVAL: i32 = 22;
const ENOSPC: i32 = 28;
const EROFS: i32 = 30;
const ERANGE: i32 = 34;

struct Stage {
    fixture: polyrail_host::fixtures::Fixture,
    folder: tempfile::TempDir,
}

impl Stage {
    fn new() -> Self {
        Self { fixture: two_nics(24), folder: tempfile::tempdir().unwrap() }
    }

    fn machine(&self) -> Shaky {
        Shaky::new(self.fixture.root())
    }

    fn state(&self) -> StateDir {
        StateDir::new(self.folder.path().join("state"))
    }

    fn plan(&self) -> Plan {
        plan_of(&mut self.machine(), Policy::Split)
    }

    fn apply(&self, machine: &mut Shaky) -> Result<polyrail_tune::Applied, TuneError> {
        let plan = self.plan();
        apply(machine, &mut RealDisk, &self.state(), &plan, &ApplyOptions::default())
    }

    fn reset(&self, which: &Which) -> Result<Vec<polyrail_tune::Restored>, TuneError> {
        reset(&mut self.machine(), &mut RealDisk, &self.state(), "irq", which, false)
    }

    fn files(&self) -> std::collections::BTreeMap<std::path::PathBuf, String> {
        files(&self.fixture.root())
    }
}

#[test]
fn a_plan_is_carried_out_and_taken_back_byte_for_byte() {
    let stage = Stage::new();
    let before = stage.files();
    let applied = stage.apply(&mut stage.machine()).unwrap();
    assert_eq!(applied.outcomes.len(), 16);
    assert!(applied.outcomes.iter().all(|outcome| outcome.effect == Effect::Ok));
    assert_ne!(stage.files(), before);
    let sessions = stage.state().sessions().unwrap();
    assert_eq!(sessions.len(), 1);
    assert_eq!(sessions[0].status, Status::Committed);
    assert_eq!(Some(&sessions[0].id), applied.session.as_ref());

    let restored = stage.reset(&Which::Latest).unwrap();
    assert_eq!(restored.len(), 16);
    assert_eq!(stage.files(), before);
    assert_eq!(stage.reset(&Which::Latest).unwrap(), []);
}

#[test]
fn backups_are_for_their_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let stage = Stage::new();
    let id = stage.apply(&mut stage.machine()).unwrap().session.unwrap();
    let folder = stage.state().path().join(id);
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&folder), 0o700);
    assert_eq!(mode(&folder.join("journal.jsonl")), 0o600);
}

#[test]
fn an_interrupt_that_did_not_come_yet_is_pending_and_ok_when_it_has() {
    let stage = Stage::new();
    let plan = stage.plan();
    let mut machine = stage.machine();
    machine.moves = false;
    let applied = stage.apply(&mut machine).unwrap();
    assert!(applied.outcomes.iter().any(|outcome| outcome.effect == Effect::Pending));
    assert!(machine.paused >= Duration::from_secs(2), "it was given time: {:?}", machine.paused);

    let checked = verify(&mut machine, &plan, &[], Duration::ZERO).unwrap();
    assert!(checked.iter().any(|one| one.state == State::Pending));
    assert!(is_good(&checked, true) && !is_good(&checked, false));

    for one in &checked {
        let polyrail_tune::Target::Irq(id) = &one.target else { continue };
        let vectors = polyrail_tune::irq::Vectors::read(&stage.fixture.root()).unwrap();
        let path = format!("/proc/irq/{}/effective_affinity_list", vectors.find(id).unwrap());
        stage.fixture.write(&path, &one.wanted);
    }
    let checked = verify(&mut machine, &plan, &[], Duration::ZERO).unwrap();
    assert!(is_good(&checked, false), "{checked:?}");
}

#[test]
fn managed_vectors_are_skipped_in_the_words_of_old_and_new_kernels() {
    for code in [EIO, EPERM] {
        let stage = Stage::new();
        let before = stage.files();
        let mut machine = stage.machine().with("virtio0-input.2", Trouble::Fails(code));
        let plan = stage.plan();
        let applied = stage.apply(&mut machine).unwrap();
        let managed: Vec<_> =
            applied.outcomes.iter().filter(|one| one.effect == Effect::Managed).collect();
        assert_eq!(managed.len(), 1);
        let session = stage.state().sessions().unwrap().remove(0);
        assert_eq!(session.managed, [managed[0].change.target.clone()]);
        let checked = verify(&mut machine, &plan, &session.managed, Duration::ZERO).unwrap();
        assert!(is_good(&checked, false), "{checked:?}");
        stage.reset(&Which::Latest).unwrap();
        assert_eq!(stage.files(), before);
    }
}

#[test]
fn a_hard_error_takes_everything_back_and_says_what_helps() {
    for (code, help) in [
        (ENOSPC, "no free interrupt vector"),
        (EINVAL, "online"),
        (ERANGE, "no CPU of that number"),
    ] {
        let stage = Stage::new();
        let before = stage.files();
        let mut machine = stage.machine().with("virtio1-input.1", Trouble::Fails(code));
        let error = stage.apply(&mut machine).unwrap_err();
        let TuneError::RolledBack { restored, .. } = &error else { panic!("{error}") };
        assert!(*restored > 0, "something had been changed");
        assert!(error.to_string().contains("the host is as it was"), "{error}");
        assert!(error.help().unwrap().contains(help), "{error}: {:?}", error.help());
        assert_eq!(error.blame(), Blame::Environment);
        assert_eq!(stage.files(), before);
        assert_eq!(stage.reset(&Which::Latest).unwrap(), []);
    }
}

#[test]
fn what_may_work_in_a_moment_is_tried_again_but_not_for_ever() {
    let stage = Stage::new();
    let mut machine = stage.machine().with("virtio0-input.0", Trouble::FailsTimes(EBUSY, 3));
    stage.apply(&mut machine).unwrap();
    stage.reset(&Which::Latest).unwrap();

    let before = stage.files();
    let mut machine = stage.machine().with("virtio1-input.0", Trouble::Fails(EBUSY));
    let error = stage.apply(&mut machine).unwrap_err();
    assert!(matches!(error, TuneError::RolledBack { .. }), "{error}");
    assert_eq!(stage.files(), before);
}

#[test]
fn a_write_that_is_accepted_and_ignored_is_found_by_reading_back() {
    let stage = Stage::new();
    let before = stage.files();
    let mut machine = stage.machine().with("virtio1-output.3", Trouble::Ignored);
    let error = stage.apply(&mut machine).unwrap_err();
    assert!(error.to_string().contains("but reads"), "{error}");
    assert_eq!(stage.files(), before);
}

#[test]
fn a_roll_back_that_fails_names_what_is_left_and_reset_can_try_again() {
    let stage = Stage::new();
    let before = stage.files();
    let plan = stage.plan();
    // A machine whose first vector can be written once, and whose last can't be written at all.
    struct Turns(Shaky);
    impl polyrail_tune::Machine for Turns {
        fn read(
            &mut self,
            target: &polyrail_tune::Target,
        ) -> Result<Option<String>, polyrail_tune::Fault> {
            self.0.read(target)
        }
        fn write(
            &mut self,
            target: &polyrail_tune::Target,
            value: &str,
        ) -> Result<(), polyrail_tune::Fault> {
            let result = self.0.write(target, value);
            self.0.troubles.insert("virtio0-input.1".to_owned(), Trouble::Fails(EINVAL));
            result
        }
        fn try_open(&mut self, target: &polyrail_tune::Target) -> Result<(), polyrail_tune::Fault> {
            self.0.try_open(target)
        }
        fn effective(
            &mut self,
            vector: &polyrail_tune::VectorId,
        ) -> Result<Option<String>, polyrail_tune::Fault> {
            self.0.effective(vector)
        }
        fn place(&mut self, target: &polyrail_tune::Target) -> String {
            self.0.place(target)
        }
        fn root(&self) -> &polyrail_host::Sysroot {
            self.0.root()
        }
        fn pause(&mut self, duration: Duration) {
            self.0.pause(duration);
        }
    }
    let only: Plan = {
        // The vector whose second write fails comes first.
        let mut plan = plan;
        let is_first = |change: &polyrail_tune::Change| change.what == "eth1 rx 1";
        plan.changes.sort_by_key(|change| !is_first(change));
        plan
    };
    let mut machine = Turns(stage.machine().with("virtio1-output.3", Trouble::Fails(EINVAL)));
    let options = ApplyOptions { force: true, ..ApplyOptions::default() };
    let error = apply(&mut machine, &mut RealDisk, &stage.state(), &only, &options).unwrap_err();
    let TuneError::HalfDone { failures, .. } = &error else { panic!("{error}") };
    assert_eq!(failures.len(), 1, "{failures:?}");
    assert!(error.help().unwrap().contains("polyrail host undo"));
    assert_ne!(stage.files(), before);
    stage.reset(&Which::Latest).unwrap();
    assert_eq!(stage.files(), before);
}

#[test]
fn a_disk_that_fills_up_at_any_byte_leaves_the_host_as_it_was() {
    let stage = Stage::new();
    let before = stage.files();
    let plan = stage.plan();
    let mut disk = FullDisk { left: usize::MAX };
    let options = ApplyOptions::default();
    apply(&mut stage.machine(), &mut disk, &stage.state(), &plan, &options).unwrap();
    let used = usize::MAX - disk.left;
    stage.reset(&Which::Latest).unwrap();
    for left in (0..used).step_by(211).chain([used - 1]) {
        let state = StateDir::new(stage.folder.path().join(format!("state-{left}")));
        let mut disk = FullDisk { left };
        let error = apply(&mut stage.machine(), &mut disk, &state, &plan, &options).unwrap_err();
        assert!(error.to_string().contains("No space left on device"), "{left}: {error}");
        assert_eq!(stage.files(), before, "{left} bytes");
        // The rest of the journal is readable and undoes only completed writes.
        let mut machine = stage.machine();
        reset(&mut machine, &mut RealDisk, &state, "irq", &Which::Latest, false).unwrap();
        assert_eq!(machine.writes, 0, "{left} bytes");
    }
}

#[test]
fn a_process_that_dies_before_any_write_is_taken_back_from_the_journal_alone() {
    let stage = Stage::new();
    let before = stage.files();
    let plan = stage.plan();
    for dies_at in 0..plan.changes.len() {
        let state = StateDir::new(stage.folder.path().join(format!("state-{dies_at}")));
        let mut machine = stage.machine();
        machine.dies_at = Some(dies_at);
        let died = catch_unwind(AssertUnwindSafe(|| {
            apply(&mut machine, &mut RealDisk, &state, &plan, &ApplyOptions::default())
        }));
        assert!(died.is_err(), "it was killed");
        assert_eq!(stage.files() != before, dies_at > 0);
        let session = state.sessions().unwrap().remove(0);
        assert_eq!(session.status, Status::Begun);
        reset(&mut stage.machine(), &mut RealDisk, &state, "irq", &Which::Latest, false).unwrap();
        assert_eq!(stage.files(), before, "killed before write {dies_at}");
        assert_eq!(state.sessions().unwrap()[0].status, Status::Reset);
    }
}

#[test]
fn a_torn_last_line_is_no_damage_and_a_broken_line_before_it_is() {
    let stage = Stage::new();
    let before = stage.files();
    let id = stage.apply(&mut stage.machine()).unwrap().session.unwrap();
    let path = stage.state().path().join(&id).join("journal.jsonl");
    let whole = fs::read_to_string(&path).unwrap();

    fs::write(&path, format!("{whole}{{\"step\":\"wri")).unwrap();
    stage.reset(&Which::Latest).unwrap();
    assert_eq!(stage.files(), before);
    // The journal continued after the torn line, and stays readable.
    stage.reset(&Which::Pristine).unwrap();

    stage.apply(&mut stage.machine()).unwrap();
    let id = stage.state().sessions().unwrap().pop().unwrap().id;
    let path = stage.state().path().join(&id).join("journal.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    let last = lines.len() - 1;
    lines[last - 1] = "{\"step\":\"written\",\"num\u{0}";
    fs::write(&path, lines.join("\n") + "\n").unwrap();
    let error = stage.reset(&Which::Latest).unwrap_err();
    let TuneError::BadJournal { line, .. } = &error else { panic!("{error}") };
    assert_eq!(*line, last);
    let state = stage.state();
    reset(&mut stage.machine(), &mut RealDisk, &state, "irq", &Which::Latest, true).unwrap();
    assert_eq!(stage.files(), before);
}

#[test]
fn a_missing_right_is_found_before_anything_is_written() {
    for (code, help) in [(EACCES, "run as root"), (EROFS, "mounted read-only")] {
        let stage = Stage::new();
        let before = stage.files();
        let mut machine = stage.machine().with("virtio1-output.3", Trouble::Closed(code));
        let error = stage.apply(&mut machine).unwrap_err();
        assert!(matches!(error, TuneError::Denied { more: 0, .. }), "{error}");
        assert!(error.help().unwrap().contains(help), "{:?}", error.help());
        assert_eq!(machine.writes, 0);
        assert_eq!(stage.files(), before);
        assert!(stage.state().sessions().unwrap().is_empty());
    }
}

#[test]
fn of_values_that_may_not_be_written_one_is_named_and_the_others_are_counted() {
    let stage = Stage::new();
    let mut machine = stage.machine();
    for vector in ["virtio0-input.1", "virtio1-input.1", "virtio1-output.3"] {
        machine = machine.with(vector, Trouble::Closed(EACCES));
    }
    let error = stage.apply(&mut machine).unwrap_err();
    assert!(error.to_string().ends_with("; 2 other values can't be written, either"), "{error}");
    assert!(error.help().unwrap().contains("run as root"), "{:?}", error.help());
}

#[test]
fn a_backup_that_cannot_be_written_changes_nothing() {
    let stage = Stage::new();
    let before = stage.files();
    let file = stage.folder.path().join("file");
    fs::write(&file, "").unwrap();
    let state = StateDir::new(file.join("state"));
    let mut machine = stage.machine();
    let error = apply(&mut machine, &mut RealDisk, &state, &stage.plan(), &ApplyOptions::default())
        .unwrap_err();
    assert!(matches!(error, TuneError::Journal { .. }), "{error}");
    assert!(error.help().unwrap().contains("--state-dir"));
    assert_eq!(machine.writes, 0);
    assert_eq!(stage.files(), before);
}

#[test]
fn a_request_to_stop_takes_back_what_was_done() {
    let stage = Stage::new();
    let before = stage.files();
    let asked = Cell::new(0);
    let stop = || {
        asked.set(asked.get() + 1);
        asked.get() == 7
    };
    let options = ApplyOptions { stop: &stop, ..ApplyOptions::default() };
    let plan = stage.plan();
    let mut machine = stage.machine();
    let error = apply(&mut machine, &mut RealDisk, &stage.state(), &plan, &options).unwrap_err();
    assert_eq!(error.blame(), Blame::Stop, "{error}");
    assert!(machine.writes > 6);
    assert_eq!(stage.files(), before);
}

#[test]
fn several_sessions_go_back_to_the_first_values_whatever_was_reset_between() {
    let stage = Stage::new();
    let before = stage.files();
    let carry_out = |policy| {
        let mut machine = stage.machine();
        let plan = plan_of(&mut machine, policy);
        let options = ApplyOptions::default();
        apply(&mut machine, &mut RealDisk, &stage.state(), &plan, &options).unwrap()
    };
    let first = carry_out(Policy::Single).session.unwrap();
    carry_out(Policy::Spread);
    stage.reset(&Which::Id(first)).unwrap();
    carry_out(Policy::Numa);
    assert_ne!(stage.files(), before);
    stage.reset(&Which::Pristine).unwrap();
    assert_eq!(stage.files(), before);
    let error = stage.reset(&Which::Id("none".to_owned())).unwrap_err();
    assert!(error.to_string().starts_with("session `none`: does not exist; allowed: 2"), "{error}");
}

/// Simulates `host watch --enforce`, which carries a plan out again after others have changed
/// values.
#[test]
fn sessions_that_carried_out_one_plan_are_undone_together() {
    let stage = Stage::new();
    let before = stage.files();
    let plan = stage.plan();
    let applied = stage.apply(&mut stage.machine()).unwrap();
    let target = &applied.outcomes[0].change.target;
    let path = stage.fixture.root().path(stage.machine().place(target));
    fs::write(&path, "7\n").unwrap();
    let options = ApplyOptions { force: true, ..ApplyOptions::default() };
    apply(&mut stage.machine(), &mut RealDisk, &stage.state(), &plan, &options).unwrap();
    assert_eq!(stage.state().sessions().unwrap().len(), 2);
    stage.reset(&Which::Latest).unwrap();
    assert_eq!(stage.files(), before);
    assert!(stage.state().sessions().unwrap().iter().all(|session| !session.is_open()));
}

#[test]
fn a_plan_of_another_machine_or_boot_is_refused_and_with_force_goes_by_identity() {
    let stage = Stage::new();
    let plan = stage.plan();
    // The same devices, with other numbers for their interrupts.
    let other = two_nics(100);
    let state = stage.state();
    for (hostname, boot, words) in [
        ("other", "1f0c0b52-0000-4000-8000-000000000001", "for the machine fixture"),
        ("fixture", "1f0c0b52-0000-4000-8000-000000000002", "before this machine was booted"),
    ] {
        let other = named(two_nics(100), hostname, boot);
        let before = files(&other.root());
        let mut machine = Shaky::new(other.root());
        let error = apply(&mut machine, &mut RealDisk, &state, &plan, &ApplyOptions::default())
            .unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!(error.blame(), Blame::Input);
        assert_eq!(files(&other.root()), before);
    }
    let other = named(other, "other", "1f0c0b52-0000-4000-8000-000000000002");
    let before = files(&other.root());
    let mut machine = Shaky::new(other.root());
    let options = ApplyOptions { force: true, ..ApplyOptions::default() };
    apply(&mut machine, &mut RealDisk, &state, &plan, &options).unwrap();
    let checked = verify(&mut machine, &plan, &[], Duration::ZERO).unwrap();
    assert!(is_good(&checked, false), "{checked:?}");
    // The journal names the machine that was changed, not the one that the plan was made for.
    reset(&mut machine, &mut RealDisk, &state, "irq", &Which::Latest, false).unwrap();
    assert_eq!(files(&other.root()), before);
}

#[test]
fn a_nic_that_vanished_since_the_plan_is_refused_and_with_force_reported_missing() {
    let stage = Stage::new();
    let plan = stage.plan();
    let path = "/proc/interrupts";
    let text = stage.fixture.root().read(path).unwrap();
    let left: Vec<&str> = text.lines().filter(|line| !line.contains("virtio1-")).collect();
    stage.fixture.write(path, &(left.join("\n") + "\n"));
    let before = stage.files();
    let mut machine = stage.machine();
    let error = apply(&mut machine, &mut RealDisk, &stage.state(), &plan, &ApplyOptions::default())
        .unwrap_err();
    assert!(error.to_string().contains("0000:40:00.0 (virtio1-input.0) is gone"), "{error}");
    assert!(error.to_string().contains("more"), "long lists are cut: {error}");
    assert_eq!(stage.files(), before);

    let options = ApplyOptions { force: true, ..ApplyOptions::default() };
    let applied = apply(&mut machine, &mut RealDisk, &stage.state(), &plan, &options).unwrap();
    let count = |effect| applied.outcomes.iter().filter(|one| one.effect == effect).count();
    assert_eq!((count(Effect::Missing), count(Effect::Ok)), (8, 8));
    stage.reset(&Which::Latest).unwrap();
    assert_eq!(stage.files(), before);
}

#[test]
fn a_value_that_something_else_has_set_since_stays_and_force_restores_it() {
    let stage = Stage::new();
    let before = stage.files();
    let applied = stage.apply(&mut stage.machine()).unwrap();
    let target = &applied.outcomes[0].change.target;
    let path = stage.fixture.root().path(stage.machine().place(target));
    fs::write(&path, "7\n").unwrap();
    let restored = stage.reset(&Which::Latest).unwrap();
    let left: Vec<_> = restored.iter().filter(|one| one.is_of_others).collect();
    assert_eq!((left.len(), &left[0].target), (1, target));
    let why = left[0].failure.as_deref().unwrap();
    assert!(why.contains("something else has set it to 7"), "{why}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "7\n");
    let mut now = stage.files();
    let of_path =
        now.iter().find(|(_, text)| *text == "7\n").map(|(path, _)| path.clone()).unwrap();
    now.insert(of_path.clone(), before[&of_path].clone());
    assert_eq!(now, before, "every other value is as before");
    // No change of the session is left, so it is closed.
    assert_eq!(stage.reset(&Which::Latest).unwrap(), []);
    reset(&mut stage.machine(), &mut RealDisk, &stage.state(), "irq", &Which::Pristine, true)
        .unwrap();
    assert_eq!(stage.files(), before);
}

#[test]
fn a_journal_that_names_another_file_than_a_setting_restores_nothing_there() {
    let stage = Stage::new();
    let before = stage.files();
    let session = stage.apply(&mut stage.machine()).unwrap().session.unwrap();
    let root = stage.fixture.root();
    let journal = stage.state().path().join(&session).join("journal.jsonl");
    let whole = fs::read_to_string(&journal).unwrap();
    let names = ["/etc/passwd", "/proc/sys/kernel/core_pattern"];
    let mut all = whole.clone();
    for (name, fault) in
        names.into_iter().zip(["allowed: files below /proc/sys/", "a program that root runs"])
    {
        let path = root.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "new\n").unwrap();
        let target = format!("\"target\":{{\"kind\":\"file\",\"path\":\"{name}\"}}");
        let lines = format!(
            "{{\"step\":\"write\",\"number\":99,{target},\"old\":\"theirs\",\"new\":\"new\"}}\n\
             {{\"step\":\"written\",\"number\":99}}\n"
        );
        fs::write(&journal, whole.clone() + &lines).unwrap();
        let error = stage.reset(&Which::Latest).unwrap_err();
        assert!(matches!(error, TuneError::BadJournal { .. }), "{error}");
        assert!(error.to_string().contains(fault), "{error}");
        all += &lines;
    }
    fs::write(&journal, all).unwrap();
    reset(&mut stage.machine(), &mut RealDisk, &stage.state(), "irq", &Which::Latest, true)
        .unwrap();
    for path in names.map(|name| root.path(name)) {
        assert_eq!(fs::read_to_string(&path).unwrap(), "new\n");
        fs::remove_file(path).unwrap();
    }
    assert_eq!(stage.files(), before);
}

#[test]
fn root_undoes_and_begins_no_journal_that_another_user_can_change() {
    if !polyrail_sys::files::is_privileged() {
        return polyrail_skip::skip(
            "needs root",
            "sudo cargo test -p polyrail-tune --test all transaction::",
        );
    }
    let stage = Stage::new();
    let session = stage.apply(&mut stage.machine()).unwrap().session.unwrap();
    let applied = stage.files();
    let state = stage.state();
    let folder = state.path().join(session);
    for path in [folder.join("journal.jsonl"), folder, state.path().to_owned()] {
        let give = |user| std::os::unix::fs::chown(&path, Some(user), Some(user)).unwrap();
        give(65534);
        let error = stage.reset(&Which::Latest).unwrap_err();
        assert!(matches!(error, TuneError::Untrusted { .. }), "{error}");
        assert!(error.to_string().contains("belongs to user 65534"), "{error}");
        give(0);
    }
    assert_eq!(stage.files(), applied);
    stage.reset(&Which::Latest).unwrap();
    let before = stage.files();
    std::os::unix::fs::chown(state.path(), Some(65534), None).unwrap();
    let error = stage.apply(&mut stage.machine()).unwrap_err();
    assert!(matches!(error, TuneError::Untrusted { .. }), "{error}");
    assert_eq!(stage.files(), before, "what could not be undone later is not begun");
}

#[test]
fn a_value_of_a_copy_of_a_machine_is_no_link_out_of_it_and_no_second_name() {
    let stage = Stage::new();
    let root = stage.fixture.root();
    // The folder is on the copy's file system, where a file of the copy can get a second name.
    let folder = tempfile::tempdir_in(root.root().parent().unwrap()).unwrap();
    let outside = folder.path().join("outside");
    fs::write(&outside, "old").unwrap();
    let core = root.path("/proc/sys/net/core");
    fs::create_dir_all(&core).unwrap();
    std::os::unix::fs::symlink(&outside, core.join("link")).unwrap();
    fs::hard_link(&outside, core.join("second")).unwrap();
    std::os::unix::fs::symlink(folder.path(), root.path("/proc/sys/net/away")).unwrap();
    let mut machine = polyrail_tune::SysMachine::new(root);
    for path in ["core/link", "core/second", "away/outside"] {
        let target = polyrail_tune::Target::File { path: format!("/proc/sys/net/{path}") };
        let fault = machine.write(&target, "new").unwrap_err();
        assert!(machine.try_open(&target).is_err(), "{fault}");
        let read = machine.read(&target).ok().flatten();
        assert!(path == "core/second" || read.is_none(), "{path}: {read:?}");
    }
    assert_eq!(fs::read_to_string(&outside).unwrap(), "old");
}

#[test]
fn a_session_of_a_copy_that_has_the_names_of_another_machine_is_undone_there_alone() {
    let (copy, other) = (Stage::new(), Stage::new());
    copy.apply(&mut copy.machine()).unwrap();
    let before = other.files();
    for force in [false, true] {
        // Both copies have the same name, boot and kernel, and root keeps the sessions of both in
        // one folder.
        let mut machine = other.machine();
        let undone =
            reset(&mut machine, &mut RealDisk, &copy.state(), "irq", &Which::Latest, force);
        assert_eq!(undone.unwrap(), [], "force {force}");
        assert_eq!(other.files(), before, "force {force}");
    }
    assert!(!copy.reset(&Which::Latest).unwrap().is_empty());
}
