//! Groups in a real etcd: members that join, leave and die, and an etcd that stops, returns, forgets or refuses.

use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use polyrail_rendezvous::{Event, Group, Membership, RendezvousError, join, look};
use polyrail_skip::HeldPort;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::common::{DEADLINE, Etcd, config, engine, logged, member, wait_for_log};

fn enter(engine: &polyrail::Engine, name: &str) -> Group {
    join(engine, &Membership::new("g").unwrap().name(name).unwrap()).unwrap()
}

fn left(group: &Group, timeout: Duration) -> Option<String> {
    match group.next_event(timeout) {
        Some(Event::Left { name }) => Some(name),
        Some(other) => panic!("{other:?}"),
        None => None,
    }
}

#[test]
fn engines_meet_by_etcd_and_who_leaves_or_dies_is_gone() {
    let Some(etcd) = Etcd::start() else { return };
    let lease = Duration::from_secs(4);
    let place = etcd.place("/test?lease=4s");
    let own = engine(&place);
    let group = enter(&own, "observer");
    // Another group, and a foreign key, add no members.
    let elsewhere = join(&own, &Membership::new("h").unwrap().name("x").unwrap()).unwrap();
    etcd.ask("/v3/kv/put", "{\"key\": \"dGVzdC9nLy4uL3g=\", \"value\": \"AA==\"}").unwrap();

    let children: Vec<_> = ["a", "b"].map(|name| member(&place, "g", name, 1)).into();
    let members = group.wait_for(3, DEADLINE).expect("both join");
    assert_eq!(members.iter().map(|one| one.name()).collect::<Vec<_>>(), ["a", "b"]);
    for member in &members {
        let card = member.card().unwrap();
        assert_eq!((card.engine.as_str(), card.addresses.len()), (member.name(), 1));
        own.notify(&group.peer(member).unwrap(), b"hello").unwrap().join().unwrap();
        assert!(matches!(group.next_event(Duration::ZERO), Some(Event::Joined(_))));
    }
    assert!(elsewhere.members().is_empty());

    let [a, mut b] = <[_; 2]>::try_from(children).ok().unwrap();
    a.until("found");
    let begin = Instant::now();
    a.kill();
    assert_eq!(left(&group, DEADLINE).as_deref(), Some("a"));
    // The bound has slack for a machine that stalls for a moment.
    assert!(begin.elapsed() <= 2 * lease, "gone only after {:?}", begin.elapsed());

    drop(b.take_stdin());
    b.until("over");
    assert_eq!(left(&group, DEADLINE).as_deref(), Some("b"));
}

#[test]
fn who_leaves_is_gone_long_before_the_lease_is_over() {
    let Some(etcd) = Etcd::start() else { return };
    let place = etcd.place("/test?lease=300s");
    let own = engine(&place);
    let group = enter(&own, "observer");
    let mut other = member(&place, "g", "b", 1);
    group.wait_for(2, DEADLINE).expect("it joins");
    assert!(matches!(group.next_event(DEADLINE), Some(Event::Joined(_))));
    drop(other.take_stdin());
    other.until("over");
    assert_eq!(left(&group, DEADLINE).as_deref(), Some("b"));
}

#[test]
fn in_a_large_group_that_comes_and_goes_at_once_nobody_is_missed() {
    const MEMBERS: usize = 40;
    let Some(etcd) = Etcd::start() else { return };
    // A long lease: all members of this test live.
    let own = engine(&etcd.place("/test?lease=60s"));
    let start = |number: usize| {
        let own = &own;
        move || enter(own, &format!("m{number}"))
    };
    let mut groups: Vec<Group> = thread::scope(|scope| {
        let started: Vec<_> = (0..MEMBERS).map(|number| scope.spawn(start(number))).collect();
        started.into_iter().map(|one| one.join().unwrap()).collect()
    });
    for group in &groups {
        let seen = group.wait_for(MEMBERS, DEADLINE);
        assert!(seen.is_some(), "{} sees {}", group.name(), group.members().len() + 1);
    }
    let stay = groups.split_off(MEMBERS / 2);
    thread::scope(|scope| {
        groups.into_iter().for_each(|group| drop(scope.spawn(move || group.leave())));
    });
    for group in &stay {
        let mut seen = group.members().len();
        while seen + 1 != stay.len() {
            assert!(group.next_event(DEADLINE).is_some(), "{} sees {seen}", group.name());
            seen = group.members().len();
        }
    }
}

#[test]
fn a_name_is_taken_while_its_engine_lives_and_free_after_its_lease() {
    let Some(etcd) = Etcd::start() else { return };
    // The shortest lease, 3 s, expires too easily if the machine stalls for a moment.
    let place = etcd.place("?lease=6s");
    let own = engine(&place);
    let child = member(&place, "g", "a", 1);
    child.until("found");
    let membership = Membership::new("g").unwrap().name("a").unwrap();
    let error = join(&own, &membership).unwrap_err();
    assert!(matches!(&error, RendezvousError::Taken { name, .. } if name == "a"), "{error}");
    assert!(error.help().is_some());
    child.kill();
    let group = join(&own, &membership).unwrap();
    assert_eq!(group.name(), "a");
}

fn answer(etcd: &Etcd, path: &str, body: &Value) -> Value {
    let answer = etcd.ask(path, &body.to_string()).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(" 200 "), "{answer}");
    serde_json::from_str(body).unwrap()
}

fn put(etcd: &Etcd, key: &str, value: &[u8], lease: &str) {
    let (key, value) = (STANDARD.encode(key), STANDARD.encode(value));
    answer(etcd, "/v3/kv/put", &json!({ "key": key, "value": value, "lease": lease }));
}

/// Entry of a key: value, lease and version.
fn entry(etcd: &Etcd, key: &str) -> Value {
    let found = answer(etcd, "/v3/kv/range", &json!({ "key": STANDARD.encode(key) }));
    found["kvs"][0].clone()
}

/// Instance of the next engine that joins.
fn joined(group: &Group) -> String {
    match group.next_event(DEADLINE) {
        Some(Event::Joined(member)) => member.card().unwrap().instance,
        other => panic!("{other:?}"),
    }
}

#[test]
fn members_whose_keys_are_deleted_put_them_again_with_their_leases() {
    let Some(etcd) = Etcd::start() else { return };
    let place = etcd.place("/test?lease=6s");
    let (own, other) = (engine(&place), engine(&place));
    let (group, theirs) = (enter(&own, "a"), enter(&other, "b"));
    joined(&group);
    let keys = ["test/g/a", "test/g/b"];
    let leases = keys.map(|key| entry(&etcd, key)["lease"].clone());
    assert!(leases.iter().all(Value::is_string), "{leases:?}");
    // The same as `etcdctl del --prefix`.
    let all = json!({ "key": STANDARD.encode("test/g/"), "range_end": STANDARD.encode("test/g0") });
    answer(&etcd, "/v3/kv/deleterange", &all);
    assert_eq!(left(&group, DEADLINE).as_deref(), Some("b"));
    assert_eq!(joined(&group), other.instance().to_string());
    let watcher = look(&config(&place), &"g".parse().unwrap(), DEADLINE).unwrap();
    watcher.wait_for(2, DEADLINE).expect("both are back");
    assert_eq!(keys.map(|key| entry(&etcd, key)["lease"].clone()), leases);
    theirs.leave();
    assert_eq!(left(&group, DEADLINE).as_deref(), Some("b"), "it stays away");
}

#[test]
fn a_member_whose_name_another_has_taken_says_so_once_and_returns_after_it() {
    logged("");
    let Some(etcd) = Etcd::start() else { return };
    let place = etcd.place("/test?lease=3s");
    let [own, other, third] = [(); 3].map(|()| engine(&place));
    let (group, theirs) = (enter(&own, "a"), enter(&other, "robbed"));
    assert_eq!(joined(&group), other.instance().to_string());
    let granted = answer(&etcd, "/v3/lease/grant", &json!({ "TTL": "600" }));
    put(&etcd, "test/g/robbed", &third.metadata(), granted["ID"].as_str().unwrap());
    assert_eq!(left(&group, DEADLINE).as_deref(), Some("robbed"));
    assert_eq!(joined(&group), third.instance().to_string());
    let told = "name `robbed` of the group `g` is taken by the engine";
    wait_for_log(told);
    // The member still receives changes for longer than one retry interval.
    let late = engine(&place);
    let last = enter(&late, "c");
    theirs.wait_for(3, DEADLINE).expect("it hears of the others");
    assert_eq!(joined(&group), late.instance().to_string());
    assert_eq!(left(&group, Duration::from_secs(2)), None, "nobody takes anything");
    assert_eq!(entry(&etcd, "test/g/robbed")["version"], "2", "by the first and by the second");
    answer(&etcd, "/v3/lease/revoke", &json!({ "ID": granted["ID"] }));
    assert_eq!(left(&group, DEADLINE).as_deref(), Some("robbed"));
    assert_eq!(joined(&group), other.instance().to_string());
    assert_eq!(logged(told).len(), 1, "{:?}", logged(told));
    drop(last);
}

#[test]
fn a_value_that_is_no_record_makes_nobody_a_member() {
    logged("");
    let Some(etcd) = Etcd::start() else { return };
    let place = etcd.place("/test?lease=60s");
    let own = engine(&place);
    let group = enter(&own, "a");
    put(&etcd, "test/g/notes", b"buy milk", "0");
    let watcher = look(&config(&place), &"g".parse().unwrap(), DEADLINE).unwrap();
    let members = watcher.wait_for(0, DEADLINE).unwrap();
    assert_eq!(members.iter().map(|one| one.name()).collect::<Vec<_>>(), ["a"]);
    put(&etcd, "test/g/more-notes", b"", "0");
    let other = engine(&place);
    let _theirs = enter(&other, "b");
    assert_eq!(joined(&group), other.instance().to_string());
    assert_eq!(group.members().len(), 1);
    for key in ["test/g/notes", "test/g/more-notes"] {
        let told = logged(&format!("{key} is left out: "));
        assert!(!told.is_empty() && told.iter().all(|line| line.contains("WARN")), "{told:?}");
    }
    // A key whose record becomes invalid is no longer a member.
    put(&etcd, "test/g/b", b"noise", "0");
    assert_eq!(left(&group, DEADLINE).as_deref(), Some("b"));
}

#[test]
fn a_name_that_is_taken_is_told_as_that_also_where_there_is_no_time_to_wait() {
    let Some(etcd) = Etcd::start() else { return };
    let place = etcd.place("/test?lease=300s");
    let own = polyrail::Engine::builder().config(config(&place)).name("holder").build().unwrap();
    let other = engine(&place);
    let _group = enter(&own, "a");
    let membership = |name| Membership::new("g").unwrap().name(name).unwrap();
    let error = join(&other, &membership("a").timeout(Duration::from_secs(2))).unwrap_err();
    let told = error.to_string();
    assert!(matches!(error, RendezvousError::Taken { .. }), "{told}");
    let who = "taken by the engine `holder` (its lease of 299 s in etcd had 29";
    assert!(told.contains(who) && told.contains("; allowed: a name"), "{told}");
    assert!(error.help().unwrap().contains("(timeout)"), "{:?}", error.help());

    // Joining does not wait for a key without a lease.
    put(&etcd, "test/g/notes", b"buy milk", "0");
    let error = join(&other, &membership("notes").timeout(DEADLINE)).unwrap_err();
    let told = error.to_string();
    assert!(told.contains("the key `test/g/notes` has the name, and no lease"), "{told}");
    assert!(error.help().unwrap().contains("etcdctl del test/g/notes"), "{:?}", error.help());
}

/// Two engines of the group `g` that meet by etcd, with leases of 3 s.
struct Two {
    etcd: Etcd,
    group: Group,
    place: String,
    theirs: Group,
    _engines: [polyrail::Engine; 2],
}

impl Two {
    /// Returns `None` and reports the test as skipped if etcd is not installed.
    fn meet() -> Option<Self> {
        let etcd = Etcd::start()?;
        let place = etcd.place("/test?lease=3s");
        let engines = [engine(&place), engine(&place)];
        let (group, theirs) = (enter(&engines[0], "a"), enter(&engines[1], "b"));
        group.wait_for(2, DEADLINE).unwrap();
        assert!(matches!(group.next_event(DEADLINE), Some(Event::Joined(_))));
        Some(Self { etcd, group, place, theirs, _engines: engines })
    }

    /// Stops etcd for longer than the lease. No member may be reported as gone, and both enter again once etcd runs.
    fn etcd_restarts(mut self, forgets: bool) {
        self.etcd.kill();
        assert_eq!(left(&self.group, Duration::from_secs(4)), None, "etcd is away");
        if forgets {
            self.etcd.forget();
        }
        self.etcd.run();
        let begin = Instant::now();
        // A new watcher sees both, so both are present again.
        let watcher = look(&config(&self.place), &"g".parse().unwrap(), DEADLINE).unwrap();
        watcher.wait_for(2, DEADLINE).expect("both enter again");
        println!("both were back {:?} after etcd", begin.elapsed());
        assert_eq!(left(&self.group, Duration::from_secs(4)), None, "they are back");
        drop(self.theirs);
        assert_eq!(left(&self.group, DEADLINE).as_deref(), Some("b"));
    }
}

#[test]
fn an_etcd_that_restarts_ends_no_membership() {
    if let Some(two) = Two::meet() {
        two.etcd_restarts(false);
    }
}

#[test]
fn an_etcd_that_forgets_ends_no_membership() {
    if let Some(two) = Two::meet() {
        two.etcd_restarts(true);
    }
}

/// etcd receives no renewals for longer than all leases. Watchers must see no change, too.
#[test]
fn an_etcd_that_stands_still_ends_no_membership() {
    let Some(two) = Two::meet() else { return };
    let watcher = look(&config(&two.place), &"g".parse().unwrap(), DEADLINE).unwrap();
    watcher.wait_for(2, DEADLINE).unwrap();
    while watcher.next_event(Duration::ZERO).is_some() {}
    two.etcd.signal(Signal::STOP);
    assert_eq!(left(&two.group, Duration::from_secs(4)), None, "etcd stands still");
    two.etcd.signal(Signal::CONT);
    assert_eq!(left(&two.group, Duration::from_secs(3)), None, "etcd goes on");
    assert_eq!(watcher.next_event(Duration::ZERO), None);
    assert_eq!(watcher.members().len(), 2);
}

#[test]
fn an_etcd_that_is_down_is_named_and_one_of_several_is_enough() {
    let Some(etcd) = Etcd::start() else { return };
    let ports = [HeldPort::new(), HeldPort::new()];
    let [down, other] = ports.each_ref().map(HeldPort::number);
    let place = format!("etcd://127.0.0.1:{down},localhost:{other}/test");
    let own = engine(&place);
    let membership = Membership::new("g").unwrap();
    let error = join(&own, &membership).unwrap_err();
    let told = error.to_string();
    assert!(matches!(error, RendezvousError::Unreachable { .. }), "{told}");
    assert!(told.contains(&place) && told.contains(&format!("127.0.0.1:{down}: ")), "{told}");
    assert!(told.contains(&format!("localhost:{other}: Connection refused")), "{told}");
    assert_eq!(error.exit_code(), 3);

    let own = engine(&format!("etcd://127.0.0.1:{down},{}/test", etcd.address()));
    let group = join(&own, &membership).unwrap();
    assert_eq!(group.name(), own.instance().to_string());

    // A listener accepts and never answers.
    let silent = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let place = format!("etcd://{}", silent.local_addr().unwrap());
    let (own, begin) = (engine(&place), Instant::now());
    let error = join(&own, &membership.clone().timeout(Duration::from_millis(200))).unwrap_err();
    assert!(matches!(error, RendezvousError::Unreachable { .. }), "{error}");
    let error =
        look(&config(&place), &"g".parse().unwrap(), Duration::from_millis(200)).unwrap_err();
    assert!(error.to_string().contains("no answer in time"), "{error}");
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());

    // Another program, an engine, listens there.
    let own = engine(&format!("etcd://{}", own.addresses()[0]));
    let error = join(&own, &membership).unwrap_err();
    assert!(matches!(error, RendezvousError::Unreachable { .. }), "{error}");
}

#[test]
fn an_etcd_with_users_lets_in_who_proves_to_be_one() {
    let Some(etcd) = Etcd::start() else { return };
    for (path, body) in [
        ("/v3/auth/user/add", "{\"name\": \"root\", \"password\": \"secret\"}"),
        ("/v3/auth/role/add", "{\"name\": \"root\"}"),
        ("/v3/auth/user/grant", "{\"user\": \"root\", \"role\": \"root\"}"),
        ("/v3/auth/enable", "{}"),
    ] {
        let answer = etcd.ask(path, body).unwrap();
        assert!(answer.contains(" 200 "), "{answer}");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("user");
    let membership = Membership::new("g").unwrap();
    let with_file = etcd.place(&format!("/test?lease=3s&user_file={}", path.display()));
    for (text, place) in [("", etcd.place("/test")), ("root:wrong", with_file.clone())] {
        std::fs::write(&path, text).unwrap();
        let error = join(&engine(&place), &membership).unwrap_err();
        let told = error.to_string();
        assert!(matches!(error, RendezvousError::Refused { .. }), "{told}");
        assert!(error.help().unwrap().contains("user_file"), "{:?}", error.help());
        assert!(!told.contains("wrong"), "{told}");
    }
    std::fs::write(&path, "root:secret\n").unwrap();
    let (own, other) = (engine(&with_file), engine(&with_file));
    let (group, _theirs) = (enter(&own, "a"), enter(&other, "b"));
    group.wait_for(2, DEADLINE).unwrap();
}
