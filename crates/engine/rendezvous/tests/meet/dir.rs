//! Groups in a folder: members that join, leave, die and stall, taken names, and files of others.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use polyrail_rendezvous::{Event, Group, Membership, RendezvousError, join, look};
use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::process::{Pid, Signal, kill_process};

use crate::common::{DEADLINE, Process, config, engine, has_files, logged, member, wait_for_log};

fn enter(engine: &polyrail::Engine, name: &str) -> Group {
    join(engine, &Membership::new("g").unwrap().name(name).unwrap()).unwrap()
}

fn event(group: &Group, timeout: Duration) -> Option<String> {
    group.next_event(timeout).map(|event| match event {
        Event::Joined(member) => format!("+{}", member.name()),
        Event::Left { name } => format!("-{name}"),
        other => format!("{other:?}"),
    })
}

fn signal(process: &Process, signal: Signal) {
    kill_process(Pid::from_child(&process.child), signal).unwrap();
}

#[test]
fn engines_meet_by_a_folder_and_who_leaves_or_dies_is_gone_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let place = format!("dir://{}/new", folder.path().display());
    let own = engine(&place);
    let group = enter(&own, "observer");
    let (a, mut b) = (member(&place, "g", "a", 1), member(&place, "g", "b", 3));
    b.until("found 3");
    // Each member waits for messages from both others. `a` finds itself alone, so this end sends two.
    let members = group.wait_for(3, DEADLINE).unwrap();
    for text in [b"one", b"two"] {
        own.notify(&group.peer(&members[1]).unwrap(), text).unwrap().join().unwrap();
    }
    b.until("heard 2");
    assert_eq!(event(&group, DEADLINE).as_deref(), Some("+a"));
    assert_eq!(event(&group, DEADLINE).as_deref(), Some("+b"));
    assert!(has_files(&folder.path().join("new/g"), 4), "three members and a lock");
    let mode = fs::metadata(folder.path().join("new/g")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);

    let begin = Instant::now();
    a.kill();
    assert_eq!(event(&group, DEADLINE).as_deref(), Some("-a"));
    drop(b.take_stdin());
    assert_eq!(event(&group, DEADLINE).as_deref(), Some("-b"));
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}, the lease is 30 s", begin.elapsed());
    let begin = Instant::now();
    while !has_files(&folder.path().join("new/g"), 2) {
        assert!(begin.elapsed() < DEADLINE, "nobody removes the file of the dead");
        // Removing a file sends no signal here, so poll.
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn who_waits_for_news_of_a_group_that_is_left_waits_no_longer() {
    let folder = tempfile::tempdir().unwrap();
    let place = format!("dir://{}", folder.path().display());
    let (one, other) = (engine(&place), engine(&place));
    let (group, watcher) = (enter(&one, "a"), enter(&other, "b"));
    assert_eq!(event(&watcher, DEADLINE).as_deref(), Some("+a"));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| group.wait_for(3, Duration::MAX));
        group.end();
        assert_eq!(waits.join().unwrap(), None);
    });
    assert_eq!(event(&watcher, DEADLINE).as_deref(), Some("-a"));
    group.end();
}

#[test]
fn who_is_silent_for_a_lease_has_left_and_joins_again_with_a_sign_of_life() {
    let folder = tempfile::tempdir().unwrap();
    let place = format!("dir://{}?lease=3s", folder.path().display());
    let watcher = look(&config(&place), &"g".parse().unwrap(), DEADLINE).unwrap();
    let child = member(&place, "g", "a", 1);
    assert!(matches!(watcher.next_event(DEADLINE), Some(Event::Joined(_))));
    // The process still exists, like one on another host.
    let begin = Instant::now();
    signal(&child, Signal::STOP);
    assert_eq!(watcher.next_event(DEADLINE), Some(Event::Left { name: "a".to_owned() }));
    assert!(begin.elapsed() > Duration::from_secs(1), "{:?}", begin.elapsed());
    signal(&child, Signal::CONT);
    assert!(matches!(watcher.next_event(DEADLINE), Some(Event::Joined(_))));
}

#[test]
fn a_name_is_taken_while_its_engine_lives() {
    let folder = tempfile::tempdir().unwrap();
    let place = format!("dir://{}?lease=3s", folder.path().display());
    let own = engine(&place);
    let child = member(&place, "g", "a", 1);
    child.until("found");
    let membership = |name| Membership::new("g").unwrap().name(name).unwrap();
    let error = join(&own, &membership("a")).unwrap_err();
    assert!(matches!(&error, RendezvousError::Taken { name, .. } if name == "a"), "{error}");

    // A member that is silent for a lease has lost its name.
    let silent = member(&place, "g", "b", 1);
    silent.until("found");
    signal(&silent, Signal::STOP);
    let theirs = join(&own, &membership("b")).unwrap();
    assert_eq!(theirs.name(), "b");
}

#[test]
fn the_name_of_the_dead_is_free_long_before_its_lease_is_over() {
    let folder = tempfile::tempdir().unwrap();
    let place = format!("dir://{}?lease=300s", folder.path().display());
    let own = engine(&place);
    let child = member(&place, "g", "a", 1);
    child.until("found");
    child.kill();
    let begin = Instant::now();
    assert_eq!(enter(&own, "a").name(), "a");
    assert!(begin.elapsed() < DEADLINE, "{:?}, the lease is 300 s", begin.elapsed());
}

#[test]
fn who_was_silent_and_lost_its_name_keeps_no_other_alive_and_takes_the_name_back() {
    let folder = tempfile::tempdir().unwrap();
    let place = format!("dir://{}?lease=3s", folder.path().display());
    let watcher = look(&config(&place), &"g".parse().unwrap(), DEADLINE).unwrap();
    let joined = || match watcher.next_event(DEADLINE) {
        Some(Event::Joined(member)) => member.card().unwrap().instance,
        other => panic!("{other:?}"),
    };
    let first = member(&place, "g", "a", 1);
    let instance = joined();
    signal(&first, Signal::STOP);
    let second = member(&place, "g", "a", 1);
    assert_eq!(watcher.next_event(DEADLINE), Some(Event::Left { name: "a".to_owned() }));
    assert_ne!(joined(), instance);
    signal(&first, Signal::CONT);
    signal(&second, Signal::STOP);
    assert_eq!(watcher.next_event(DEADLINE), Some(Event::Left { name: "a".to_owned() }));
    assert_eq!(joined(), instance);
}

#[test]
fn a_member_whose_name_another_has_taken_says_so_once_and_returns_after_it() {
    logged("");
    let folder = tempfile::tempdir().unwrap();
    let place = format!("dir://{}?lease=6s", folder.path().display());
    let [own, other, third, late] = [(); 4].map(|()| engine(&place));
    let (group, theirs) = (enter(&own, "a"), enter(&other, "replaced"));
    let joined = || match group.next_event(DEADLINE) {
        Some(Event::Joined(member)) => member.card().unwrap().instance,
        other => panic!("{other:?}"),
    };
    assert_eq!(joined(), other.instance().to_string());
    // The name is never free in between.
    third.publish(&folder.path().join("g/replaced.polyrail")).unwrap();
    let robber = enter(&third, "replaced");
    assert_eq!(event(&group, DEADLINE).as_deref(), Some("-replaced"));
    assert_eq!(joined(), third.instance().to_string());
    let told = "name `replaced` of the group `g` is taken by the engine";
    wait_for_log(told);
    let last = enter(&late, "c");
    theirs.wait_for(3, DEADLINE).expect("it hears of the others");
    assert_eq!(joined(), late.instance().to_string());
    assert_eq!(event(&group, Duration::from_secs(3)), None, "nobody takes anything");
    drop(robber);
    assert_eq!(event(&group, DEADLINE).as_deref(), Some("-replaced"));
    assert_eq!(joined(), other.instance().to_string());
    assert_eq!(logged(told).len(), 1, "{:?}", logged(told));
    drop(last);
}

#[test]
fn nothing_waits_for_a_named_pipe() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join("g").join(name);
    let pipe = |name: &str| mkfifoat(CWD, at(name), Mode::RWXU).unwrap();
    fs::create_dir(at("")).unwrap();
    pipe("pipe.polyrail");
    let place = format!("dir://{}?lease=3s", folder.path().display());
    let (sender, done) = channel();
    std::thread::spawn(move || {
        let watcher = look(&config(&place), &"g".parse().unwrap(), DEADLINE).unwrap();
        assert_eq!(watcher.wait_for(0, DEADLINE).map(|members| members.len()), Some(0));
        // The name is as free as if its engine had died.
        let own = engine(&place);
        let group = enter(&own, "pipe");
        assert!(matches!(watcher.next_event(DEADLINE), Some(Event::Joined(_))));
        sender.send((own, group)).unwrap();
    });
    let (own, _group) = done.recv_timeout(DEADLINE).expect("it does not wait");
    fs::remove_file(at(".lock")).unwrap();
    pipe(".lock");
    let (sender, done) = channel();
    std::thread::spawn(move || {
        let error = join(&own, &Membership::new("g").unwrap()).unwrap_err();
        sender.send((error.to_string(), error.help())).unwrap();
    });
    let (told, help) = done.recv_timeout(DEADLINE).expect("it does not wait");
    assert!(told.starts_with("lock file of the group `"), "{told}");
    assert!(told.ends_with("it is no regular file"), "{told}");
    assert!(help.as_ref().is_some_and(|help| help.contains("remove")), "{help:?}");
}

#[test]
fn who_looks_loses_nobody_while_the_folder_is_away() {
    let folder = tempfile::tempdir().unwrap();
    let place = format!("dir://{}/place", folder.path().display());
    let own = engine(&place);
    let _group = enter(&own, "a");
    let watcher = look(&config(&place), &"g".parse().unwrap(), DEADLINE).unwrap();
    assert!(matches!(watcher.next_event(DEADLINE), Some(Event::Joined(_))));
    let (here, away) = (folder.path().join("place"), folder.path().join("away"));
    fs::rename(&here, &away).unwrap();
    // Long enough for several looks, but less than a third of the lease.
    assert_eq!(watcher.next_event(Duration::from_secs(3)), None);
    assert_eq!(watcher.members().len(), 1);
}

#[test]
fn files_of_others_are_left_out_and_one_that_is_removed_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let place = format!("dir://{}?lease=3s", folder.path().display());
    let (own, other) = (engine(&place), engine(&place));
    let (group, _theirs) = (enter(&own, "a"), enter(&other, "b"));
    let at = |name: &str| folder.path().join("g").join(name);
    fs::write(at("noise.polyrail"), "noise").unwrap();
    fs::write(at(".polyrail"), "noise").unwrap();
    fs::write(at("c.polyrail.17.0"), "a draft").unwrap();
    fs::copy(at("b.polyrail"), at("open.polyrail")).unwrap();
    fs::set_permissions(at("open.polyrail"), fs::Permissions::from_mode(0o666)).unwrap();
    fs::create_dir(at("folder.polyrail")).unwrap();
    assert_eq!(event(&group, DEADLINE).as_deref(), Some("+b"));
    fs::remove_file(at("b.polyrail")).unwrap();
    assert_eq!(event(&group, DEADLINE).as_deref(), Some("-b"));
    assert_eq!(event(&group, DEADLINE).as_deref(), Some("+b"));
    assert_eq!(group.members().len(), 1);
    drop(group);
    assert!(!at("a.polyrail").exists() && at("noise.polyrail").exists());
}

#[test]
fn the_file_of_another_user_makes_nobody_a_member() {
    if !rustix::process::geteuid().is_root() {
        return polyrail_skip::skip(
            "only root can give a file to another user",
            "sudo -E cargo test -p polyrail-rendezvous --test meet",
        );
    }
    let folder = tempfile::tempdir().unwrap();
    let place = format!("dir://{}", folder.path().display());
    let own = engine(&place);
    let group = enter(&own, "observer");
    // Renaming publishes each file whole before the group looks.
    let at = |name: &str| folder.path().join("g").join(name);
    let (evil, good) = (engine(&place), engine(&place));
    for (engine, name) in [(&evil, "evil"), (&good, "good")] {
        engine.publish(&at(name)).unwrap();
    }
    std::os::unix::fs::chown(at("evil"), Some(65_534), None).unwrap();
    for name in ["evil", "good"] {
        fs::rename(at(name), at(&format!("{name}.polyrail"))).unwrap();
    }
    assert_eq!(event(&group, DEADLINE).as_deref(), Some("+good"));
    fs::remove_file(at("good.polyrail")).unwrap();
    assert_eq!(event(&group, DEADLINE).as_deref(), Some("-good"));
}

#[test]
fn a_folder_that_can_not_be_used_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let own = engine(&format!("dir://{}", file.display()));
    let error = join(&own, &Membership::new("g").unwrap()).unwrap_err();
    assert!(matches!(error, RendezvousError::File { .. }), "{error}");
    let told = error.to_string();
    assert!(told.contains(file.to_str().unwrap()) && error.help().is_some(), "{told}");
    assert_eq!(error.exit_code(), 3);
    // Observing creates no files.
    let place = format!("dir://{}/none", folder.path().display());
    let watcher = look(&config(&place), &"g".parse().unwrap(), DEADLINE).unwrap();
    assert_eq!(watcher.wait_for(0, DEADLINE).map(|members| members.len()), Some(0));
    assert!(has_files(folder.path(), 1));
}

#[test]
fn without_the_setting_nobody_joins() {
    let own = engine("");
    let error = join(&own, &Membership::new("g").unwrap()).unwrap_err();
    assert!(matches!(error, RendezvousError::NotSet), "{error}");
    assert!(error.help().unwrap().contains("rendezvous=dir://"));
}
