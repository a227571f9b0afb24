//! Engines that find each other by a file.

use std::fs;
use std::time::{Duration, Instant};

use crate::common::puppet::Puppet;
use crate::common::*;
use polyrail::{Explain, PeerError};
use rustix::process::Signal;

/// Far below `peer_timeout_ms`, and far above what a check takes on a loaded machine.
const AT_ONCE: Duration = Duration::from_secs(7);

#[test]
fn a_file_carries_all_that_the_other_end_needs() {
    let (a, b) = (one_rail(&[]), one_rail(&[]));
    let folder = tempfile::tempdir().unwrap();
    let path = &folder.path().join("rank0");
    let target = zeroed(&b, 64);
    b.publish_with(path, &target.describe()).unwrap();
    let (to_b, extra) = a.find_peer_with(path, LONG).unwrap().unwrap();
    assert_eq!((to_b.instance(), &extra), (b.instance(), &target.describe()));
    let there = a.import(&extra).unwrap().all();
    a.write(&to_b, &filled(&a, 64, 1).all(), &there).unwrap().ended().unwrap();
    assert_eq!(bytes(&target), pattern(64, 1));
    assert_eq!(a.find_peer(path, LONG).unwrap().unwrap(), to_b);
    // Publishing nothing extra leaves none of the earlier bytes.
    b.publish(path).unwrap();
    assert_eq!(a.find_peer_with(path, LONG).unwrap().unwrap(), (to_b.clone(), Vec::new()));
    // A program may have written the metadata itself.
    fs::write(path, b.metadata()).unwrap();
    assert_eq!(a.find_peer(path, LONG).unwrap().unwrap(), to_b);
}

#[test]
fn the_file_of_a_process_that_has_ended_is_named_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = &folder.path().join("rank7");
    let (a, c) = (engine(&[]), engine(&[]));
    let mut puppet = Puppet::start(&a, &[]);
    assert_eq!(puppet.ask(&format!("publish {}", path.display())), "published");
    // A process that only sleeps is not gone.
    puppet.signal(Signal::STOP);
    let found = a.find_peer(path, LONG).unwrap().unwrap();
    puppet.signal(Signal::CONT);
    a.notify(&found, b"hello").unwrap().ended().unwrap();
    puppet.kill();
    let began = Instant::now();
    let error = c.find_peer(path, LONG).unwrap().unwrap_err();
    assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
    assert!(matches!(&error, PeerError::Ended { path: named, .. } if named == path), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("rank7") && text.contains("has ended"), "{text}");
    assert!(error.help().unwrap().contains("remove the file"));
    assert!(c.peers().is_empty(), "nothing has changed");
}

#[test]
fn the_file_of_an_engine_that_has_ended_in_this_process_is_named_too() {
    let (a, b) = (one_rail(&[]), one_rail(&[]));
    let folder = tempfile::tempdir().unwrap();
    let path = &folder.path().join("rank0");
    b.publish(path).unwrap();
    drop(b);
    let error = a.find_peer(path, LONG).unwrap().unwrap_err();
    assert!(matches!(error, PeerError::Ended { process, .. } if process == std::process::id()));
}

#[test]
fn a_file_that_no_engine_wrote_is_named() {
    let a = one_rail(&[]);
    let folder = tempfile::tempdir().unwrap();
    let path = &folder.path().join("rank0");
    a.publish(path).unwrap();
    let file = fs::read(path).unwrap();
    for (bytes, why) in [
        (&b"garbage"[..], "not what `publish` writes"),
        (&file[..file.len() - 1], "behind its head"),
        (&a.metadata()[..20], "metadata"),
    ] {
        fs::write(path, bytes).unwrap();
        let error = a.find_peer(path, LONG).unwrap().unwrap_err().to_string();
        assert!(error.contains("rank0") && error.contains(why), "{error}");
    }
    // A valid file, given to the wrong call.
    let error = a.add_peer(&file).unwrap_err().to_string();
    assert!(error.contains("pass its path to `find_peer`"), "{error}");
}
