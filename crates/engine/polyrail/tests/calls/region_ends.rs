//! Regions that end while operations still wait for the other half.

use std::sync::Barrier;
use std::time::Duration;

use crate::common::*;
use polyrail::{Memory, Request, TransferError};

#[test]
fn a_receive_ends_with_its_region_though_no_send_ever_comes_and_the_next_one_gets_the_message() {
    let p = pair(&[]);
    let (source, ended, next) = (filled(&p.a, 4000, 1), zeroed(&p.b, 4000), zeroed(&p.b, 4000));
    let waits = p.b.post(Request::receive(&p.to_a, 7).local(ended.all())).unwrap();
    ended.end();
    assert_eq!(waits.ended(), Err(TransferError::RegionDropped));
    let receive = p.b.post(Request::receive(&p.to_a, 7).local(next.all())).unwrap();
    // A send may meet the first receive before its peer learns that it is withdrawn, and is refused.
    let send = || p.a.post(Request::send(&p.to_b, 7).local(source.all())).unwrap().ended();
    wait_for("the message to be delivered", || match send() {
        Err(TransferError::Refused { .. }) => false,
        other => other.unwrap().bytes == 4000,
    });
    assert_eq!(receive.ended().unwrap().bytes, 4000);
    assert_eq!(bytes(&next), bytes(&source));
}

#[test]
fn a_send_ends_with_its_region_though_no_receive_ever_comes() {
    let p = pair(&[]);
    let (ended, source, target) =
        (filled(&p.a, 4000, 1), filled(&p.a, 4000, 2), zeroed(&p.b, 4000));
    let waits = p.a.post(Request::send(&p.to_b, 7).local(ended.all())).unwrap();
    drop(ended);
    assert_eq!(waits.ended(), Err(TransferError::RegionDropped));
    let receive = p.b.post(Request::receive(&p.to_a, 7).local(target.all())).unwrap();
    let send = p.a.post(Request::send(&p.to_b, 7).local(source.all())).unwrap();
    assert_eq!(receive.ended().unwrap().bytes, 4000);
    send.ended().unwrap();
    assert_eq!(bytes(&target), bytes(&source));
}

/// The posting thread may be between its check of the region and the list of waiting operations.
#[test]
fn nothing_waits_for_a_region_that_ends_while_it_is_posted() {
    const ROUNDS: u64 = 500;
    let p = pair(&[]);
    for round in 0..ROUNDS {
        let region = p.b.register(Memory::from(vec![0; 64])).unwrap();
        let local = region.all();
        let together = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                together.wait();
                region.end();
            });
            together.wait();
            let posted = match round % 2 {
                0 => p.b.post(Request::receive(&p.to_a, round).local(local)),
                _ => p.b.post(Request::send(&p.to_a, round).local(local)),
            };
            // Refused if the region has ended before.
            if let Ok(transfer) = posted {
                assert_eq!(transfer.ended(), Err(TransferError::RegionDropped), "round {round}");
            }
        });
    }
    assert_eq!(p.b.stats().ops_outstanding, 0);
}

#[test]
fn other_operations_of_the_peer_go_on() {
    let p = pair(&[]);
    let (ended, stays) = (zeroed(&p.b, 64), zeroed(&p.b, 64));
    let source = filled(&p.a, 64, 3);
    let gone = p.b.post(Request::receive(&p.to_a, 1).local(ended.all())).unwrap();
    let receive = p.b.post(Request::receive(&p.to_a, 2).local(stays.all())).unwrap();
    drop(ended);
    gone.ended().unwrap_err();
    assert!(receive.wait(Duration::ZERO).is_none());
    p.a.post(Request::send(&p.to_b, 2).local(source.all())).unwrap().ended().unwrap();
    receive.ended().unwrap();
    assert_eq!(bytes(&stays), bytes(&source));
}
