//! Faults on demand: each has a fitting code, and occurs when requested.

use nccl_net_scatter::BadMetadata;

use crate::host::{Host, Pair, Refused, noise, until};
use crate::reader::Reader;

const LEN: usize = 100_000;

/// Sends messages until a call fails. Returns the error, and the number of messages before.
fn fails(host: &Host, pair: &Pair) -> (Refused, usize) {
    let source = host.buffer(pair.sender, noise(1, LEN)).unwrap();
    let mut target = host.buffer(pair.receiver, vec![0; LEN]).unwrap();
    let (mut send, mut receive, mut came) = (None, None, 0);
    let failed = until::<()>("a fault", || {
        if receive.is_none() {
            receive = host.irecv(pair.receiver, &mut target, 0, LEN)?;
        }
        if send.is_none() {
            send = host.isend(pair.sender, &source, 0, LEN)?;
        }
        if let Some(request) = send
            && host.test(request)?.is_some()
        {
            send = None;
        }
        if let Some(request) = receive
            && host.test(request)?.is_some()
        {
            host.consumed(pair.receiver, request)?;
            (receive, came) = (None, came + 1);
        }
        Ok(None)
    });
    (failed.unwrap_err(), came)
}

#[test]
fn each_call_fails_in_its_turn() {
    for call in ["devices", "getProperties", "listen"] {
        let host = Host::new(&[("SCATTER_FAIL_CALL", call)]).unwrap();
        let failed = match call {
            "devices" => host.devices().unwrap_err(),
            "getProperties" => host.properties(0).err().unwrap(),
            _ => host.listen(0).unwrap_err(),
        };
        assert_eq!(failed, (call, 2));
    }
    assert_eq!(Host::new(&[("SCATTER_FAIL_CALL", "init")]).err(), Some(("init", 2)));
    for call in ["connect", "accept"] {
        let host = Host::new(&[("SCATTER_FAIL_CALL", call)]).unwrap();
        assert_eq!(host.pair(0).err(), Some((call, 2)));
    }
    for (call, after) in [("isend", 3), ("irecv", 3), ("irecvConsumed", 3)] {
        let value = format!("{call}:{after}");
        let host = Host::new(&[("SCATTER_FAIL_CALL", &value), ("SCATTER_MODE", "unpack")]).unwrap();
        let pair = host.pair(0).unwrap();
        let (failed, came) = fails(&host, &pair);
        assert_eq!((failed, came), ((call, 2), after));
        host.close(pair).unwrap();
    }
    for call in ["closeSend", "closeRecv", "closeListen"] {
        let host = Host::new(&[("SCATTER_FAIL_CALL", call)]).unwrap();
        let pair = host.pair(0).unwrap();
        assert_eq!(host.close(pair).unwrap_err(), (call, 2));
    }
    let host = Host::new(&[("SCATTER_FAIL_CALL", "regMr")]).unwrap();
    let pair = host.pair(0).unwrap();
    assert_eq!(host.buffer(pair.sender, vec![0; 8]).err(), Some(("regMr", 2)));
    let host = {
        drop(host);
        Host::new(&[("SCATTER_FAIL_CALL", "test")]).unwrap()
    };
    let pair = host.pair(0).unwrap();
    assert_eq!(fails(&host, &pair), (("test", 2), 0));
}

#[test]
fn a_device_fails_in_the_middle_of_a_message_and_the_other_one_works() {
    let host = Host::new(&[
        ("SCATTER_DEVICES", "127.0.0.1,127.0.0.2"),
        ("SCATTER_FAIL_AFTER", "1:550000"),
    ])
    .unwrap();
    let (one, other) = (host.pair(0).unwrap(), host.pair(1).unwrap());
    let (failed, came) = fails(&host, &other);
    // Both ends are on the device, so it moves each message twice.
    assert_eq!((failed.1, came), (2, 2), "{failed:?}");
    let (failed, _) = fails(&host, &other);
    assert_eq!(failed.1, 2, "it stays so: {failed:?}");
    assert_eq!(host.pair(1).map(|pair| fails(&host, &pair).0.1).unwrap(), 2, "also anew");
    let source = host.buffer(one.sender, noise(1, LEN)).unwrap();
    let mut target = host.buffer(one.receiver, vec![0; LEN]).unwrap();
    let receive = host.irecv(one.receiver, &mut target, 0, LEN).unwrap().unwrap();
    host.isend(one.sender, &source, 0, LEN).unwrap().unwrap();
    until("the other device", || host.test(receive)).unwrap();
    assert!(target.bytes == source.bytes);
}

#[test]
fn the_other_end_is_told_when_one_is_closed() {
    let host = Host::new(&[]).unwrap();
    let (pair, other) = (host.pair(0).unwrap(), host.pair(0).unwrap());
    let mut target = host.buffer(pair.receiver, vec![0; LEN]).unwrap();
    let receive = host.irecv(pair.receiver, &mut target, 0, LEN).unwrap().unwrap();
    // Swap the receiving ends, so that only one end of each connection is closed.
    let closed = Pair { receiver: other.receiver, ..pair };
    host.close(closed).unwrap();
    let gone = until::<()>("the end", || host.test(receive).map(|_| None)).unwrap_err();
    assert_eq!(gone, ("test", 6));
}

#[test]
fn connections_that_never_come_to_be_block_nobody() {
    let host = Host::new(&[("SCATTER_NEVER_CONNECTS", "1")]).unwrap();
    let (listener, mut handle) = host.listen(0).unwrap();
    for _ in 0..100 {
        assert_eq!(host.connect(0, &mut handle).unwrap(), None);
        assert_eq!(host.accept(listener, &mut crate::host::no_handle()).unwrap(), None);
    }
}

#[test]
fn handles_of_another_version_are_refused() {
    let host = Host::new(&[("SCATTER_HANDLE_VERSION", "2")]).unwrap();
    assert_eq!(host.pair(0).err(), Some(("connect", 4)));
    drop(host);
    let host = Host::new(&[("SCATTER_MODE", "unpack"), ("SCATTER_UNPACK_VERSION", "6")]).unwrap();
    let pair = host.pair(0).unwrap();
    assert_eq!((pair.handle.net_device_type, pair.handle.net_device_version), (1, 6));
    assert_eq!(host.properties(0).unwrap().tail.net_device_version, 6);
}

#[test]
fn a_message_that_no_bounce_buffer_can_take_is_an_error() {
    for variables in [
        // 24 fragments, and room for 4.
        [
            ("SCATTER_MODE", "unpack"),
            ("SCATTER_JITTER_BYTES", "0"),
            ("SCATTER_BOUNCE_BYTES", "16384"),
        ],
        // 6250 fragments; a message has at most 2048.
        [
            ("SCATTER_MODE", "unpack"),
            ("SCATTER_JITTER_BYTES", "0"),
            ("SCATTER_FRAGMENT_BYTES", "16"),
        ],
    ] {
        let host = Host::new(&variables).unwrap();
        let pair = host.pair(0).unwrap();
        assert_eq!(fails(&host, &pair).0.1, 3);
    }
}

#[test]
fn metadata_are_wrong_on_demand() {
    for (value, bad) in [
        ("count", BadMetadata::Count),
        ("target", BadMetadata::Target),
        ("source", BadMetadata::Source),
        ("twice", BadMetadata::Twice),
    ] {
        let host =
            Host::new(&[("SCATTER_MODE", "unpack"), ("SCATTER_BAD_METADATA", value)]).unwrap();
        let pair = host.pair(0).unwrap();
        let source = host.buffer(pair.sender, noise(1, LEN)).unwrap();
        let mut target = host.buffer(pair.receiver, vec![0; LEN]).unwrap();
        let mut reader = Reader::new(&pair.handle);
        let receive = host.irecv(pair.receiver, &mut target, 0, LEN).unwrap().unwrap();
        host.isend(pair.sender, &source, 0, LEN).unwrap().unwrap();
        until("the message", || host.test(receive)).unwrap();
        let (fragments, count) = reader.next();
        let last = *fragments.last().unwrap();
        match bad {
            BadMetadata::Count => assert_eq!(count, 2049),
            BadMetadata::Target => assert_eq!(last.dst_off, LEN as u64),
            BadMetadata::Source => assert_eq!(u64::from(last.src_off), reader.bounce_bytes()),
            BadMetadata::Twice => {
                let len: u64 = fragments.iter().map(|fragment| u64::from(fragment.len)).sum();
                assert_eq!((last.dst_off, fragments[0].dst_off), (0, 0));
                assert_ne!(len, 0);
            }
        }
        host.close(pair).unwrap();
    }
}

#[test]
fn there_may_be_no_device() {
    let host = Host::new(&[("SCATTER_DEVICES", "none")]).unwrap();
    assert_eq!(host.devices().unwrap(), 0);
    assert_eq!(host.properties(0).err(), Some(("getProperties", 4)));
    assert_eq!(host.listen(0).err(), Some(("listen", 4)));
}

#[test]
fn a_message_that_is_longer_than_its_receive_is_an_error() {
    let host = Host::new(&[]).unwrap();
    let pair = host.pair(0).unwrap();
    let source = host.buffer(pair.sender, noise(1, LEN)).unwrap();
    let mut target = host.buffer(pair.receiver, vec![0; LEN]).unwrap();
    let receive = host.irecv(pair.receiver, &mut target, 0, LEN - 1).unwrap().unwrap();
    host.isend(pair.sender, &source, 0, LEN).unwrap().unwrap();
    let failed = until::<()>("an error", || host.test(receive).map(|_| None)).unwrap_err();
    assert_eq!(failed, ("test", 4));
    assert!(target.bytes.iter().all(|byte| *byte == 0), "nothing lands");
}

#[test]
fn what_is_no_request_or_connection_is_an_error() {
    let host = Host::new(&[]).unwrap();
    let pair = host.pair(0).unwrap();
    let nothing = std::ptr::without_provenance_mut(1 << 40);
    assert_eq!(host.test(nothing).unwrap_err(), ("test", 4));
    assert_eq!(host.consumed(nothing, nothing).unwrap_err(), ("irecvConsumed", 4));
    let source = host.buffer(pair.sender, vec![0; 8]).unwrap();
    assert_eq!(host.isend(pair.receiver, &source, 0, 8).unwrap_err(), ("isend", 4));
    assert_eq!(host.isend(pair.sender, &source, 1, 8).unwrap_err(), ("isend", 4), "outside");
}
