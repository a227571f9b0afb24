//! RSS tables and rings as plans. A simulated driver that holds a string replaces a real one, which the virtual machine
//! test has.

use polyrail_host::Sysroot;
use polyrail_nic::Group;
use polyrail_tune::nic::{Spread, plan, plan_rss};
use polyrail_tune::{
    ApplyOptions, Blame, Plan, RealDisk, StateDir, Target, TuneError, Which, apply, reset,
};

use crate::common::{Shaky, Standin, two_nics};

/// A machine whose interface `eth1` has a table.
fn driver(root: Sysroot) -> Standin {
    let table = Target::Rss { nic: "eth1".to_owned() };
    Standin::new(root, |target| matches!(target, Target::Rss { .. })).with(table, "0-3 x32")
}

fn table_of(driver: &Standin) -> Option<&str> {
    driver.value(&Target::Rss { nic: "eth1".to_owned() })
}

#[test]
fn a_table_is_written_read_back_and_put_back_from_the_journal() {
    let fixture = two_nics(24);
    let folder = tempfile::tempdir().unwrap();
    let state = StateDir::new(folder.path());
    let mut machine = driver(fixture.root());
    for (spread, table, command) in [
        (Spread::Equal(2), "0-1 x64", "`ethtool -X eth1 equal 2`"),
        (Spread::Weights(vec![0, 3, 1]), "1*96,2*32", "`ethtool -X eth1 weight 0 3 1`"),
    ] {
        let plan = plan_rss(&mut machine, "eth1", &spread).unwrap();
        assert_eq!(plan.changes.len(), 1);
        assert_eq!(plan.changes[0].new, table);
        assert!(plan.changes[0].reason.contains(command), "{}", plan.changes[0].reason);
        assert_eq!(Plan::parse(&plan.to_json()).unwrap(), plan);
        apply(&mut machine, &mut RealDisk, &state, &plan, &ApplyOptions::default()).unwrap();
        assert_eq!(table_of(&machine), Some(table));
    }
    // The same plan again changes nothing.
    let again = plan_rss(&mut machine, "eth1", &Spread::Weights(vec![0, 3, 1])).unwrap();
    assert!(again.changes.is_empty() && again.unchanged.len() == 1);
    reset(&mut machine, &mut RealDisk, &state, "nic", &Which::Pristine, false).unwrap();
    assert_eq!(table_of(&machine), Some("0-3 x32"));
}

#[test]
fn a_driver_that_refuses_or_ignores_a_table_is_an_error_and_nothing_is_changed() {
    for (refuses, ignores, words) in [
        (Some(95), false, "RSS table of eth1 can't be written: Operation not supported"),
        (Some(22), false, "RSS table of eth1 can't be written: Invalid argument"),
        (None, true, "was set to 0-1 x64, but reads 0-3 x32"),
    ] {
        let fixture = two_nics(24);
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::new(folder.path());
        let mut machine = Standin { refuses, ignores, ..driver(fixture.root()) };
        let plan = plan_rss(&mut machine, "eth1", &Spread::Equal(2)).unwrap();
        let error = apply(&mut machine, &mut RealDisk, &state, &plan, &ApplyOptions::default());
        let error = error.unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        assert!(matches!(error, TuneError::RolledBack { .. }), "{error}");
        assert_eq!(table_of(&machine), Some("0-3 x32"));
    }
}

#[test]
fn what_can_not_be_spread_is_refused_before_anything_is_planned() {
    let fixture = two_nics(24);
    let mut machine = driver(fixture.root());
    for (nic, spread, words) in [
        ("eth10", Spread::Equal(2), "interface `eth10`: its driver reports no RSS table"),
        ("eth1", Spread::Equal(0), "spread `equal=0`: no queue is left; allowed: at least 1"),
        ("eth1", Spread::Equal(129), "129 queues are more than the 128 buckets"),
        ("eth1", Spread::Weights(vec![0, 0]), "all weights are 0"),
    ] {
        let error = plan_rss(&mut machine, nic, &spread).unwrap_err();
        assert_eq!(error.blame(), Blame::Input);
        assert!(error.to_string().contains(words), "{error}");
    }
    // A copy of a machine has no drivers, and this machine's must not answer for it.
    let error = plan_rss(&mut Shaky::new(fixture.root()), "eth1", &Spread::Equal(1)).unwrap_err();
    assert!(error.to_string().contains("has neither drivers nor programs"), "{error}");
}

#[test]
fn a_plan_with_a_table_that_can_not_be_is_no_plan() {
    let fixture = two_nics(24);
    let plan = plan_rss(&mut driver(fixture.root()), "eth1", &Spread::Equal(2)).unwrap();
    let text = plan.to_json().replace("0-1 x64", "0*4294967295");
    let error = Plan::parse(&text).unwrap_err().to_string();
    assert!(error.contains("spreads packets of eth1 wrongly: `0*4294967295`"), "{error}");
}

#[test]
fn a_ring_that_holds_no_packet_is_refused() {
    let fixture = two_nics(24);
    let rings = Target::Ethtool { nic: "eth1".to_owned(), setting: "rings.rx".to_owned() };
    let is_mine = |target: &Target| matches!(target, Target::Ethtool { .. });
    let mut machine = Standin::new(fixture.root(), is_mine).with(rings, "256");
    let mut planned = |size| plan(&mut machine, "eth1", Group::Rings, &[("rx".to_owned(), size)]);
    let error = planned(0).unwrap_err();
    assert_eq!(error.blame(), Blame::Input);
    assert_eq!(error.to_string(), "setting `rx=0`: leaves no room for packets; allowed: 1 or more");
    assert_eq!(planned(128).unwrap().changes[0].new, "128");
}
