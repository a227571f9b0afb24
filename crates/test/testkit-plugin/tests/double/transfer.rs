//! Messages arrive, whole and in the right place.

use std::collections::VecDeque;

use nccl_net_scatter::{ncclNetPlugin_v7, ncclNetPlugin_v11};
use polyrail_nccl_abi::{PTR_HOST, PropsV7, PropsV11};

use crate::host::{Host, Pair, no_handle, noise, until};
use crate::reader::Reader;

/// Lengths that cover every case: nothing, less than a fragment, odd ones, the longest.
const LENS: [usize; 9] = [1, 0, 4095, 4096, 4097, 100_001, 1 << 20, (4 << 20) - 1, 4 << 20];

/// Moves the messages `rounds` times, several at a time. Gathers them if they arrive in fragments.
fn move_all(host: &Host, pair: &Pair, rounds: usize) {
    let total: usize = LENS.iter().sum();
    let source = host.buffer(pair.sender, noise(5, total + 1)).unwrap();
    let mut reader = (pair.handle.net_device_type == 1).then(|| Reader::new(&pair.handle));
    for round in 0..rounds {
        let mut target = host.buffer(pair.receiver, vec![0; total + 1]).unwrap();
        let mut gathered = vec![0; total + 1];
        let (mut sends, mut receives) = (VecDeque::new(), VecDeque::new());
        let (mut to_send, mut to_receive) = (0, 0);
        let (mut sent, mut received) = (0, 0);
        let offset = |index: usize| LENS[..index].iter().sum::<usize>();
        until("a round", || {
            if let Some(len) = LENS.get(to_receive)
                && let Some(request) =
                    host.irecv(pair.receiver, &mut target, offset(to_receive), *len)?
            {
                receives.push_back(request);
                to_receive += 1;
            }
            if let Some(len) = LENS.get(to_send)
                && let Some(request) = host.isend(pair.sender, &source, offset(to_send), *len)?
            {
                sends.push_back(request);
                to_send += 1;
            }
            if let Some(request) = sends.front()
                && host.test(*request)?.is_some()
            {
                sends.pop_front();
                sent += 1;
            }
            if let Some(request) = receives.front()
                && let Some(len) = host.test(*request)?
            {
                assert_eq!(len, LENS[received]);
                if let Some(reader) = &mut reader {
                    reader.gather(&mut gathered[offset(received)..][..len]);
                }
                host.consumed(pair.receiver, *request)?;
                receives.pop_front();
                received += 1;
            }
            Ok((sent == LENS.len() && received == LENS.len()).then_some(()))
        })
        .unwrap();
        let landed = if reader.is_some() { &gathered[..total] } else { &target.bytes[..total] };
        assert!(landed == &source.bytes[..total], "other bytes, round {round}");
    }
}

#[test]
fn messages_land_in_the_buffer_in_mode_plain() {
    let host = Host::new(&[("SCATTER_DEVICES", "127.0.0.1,127.0.0.2")]).unwrap();
    assert_eq!(host.devices().unwrap(), 2);
    for device in 0..2 {
        let pair = host.pair(device).unwrap();
        assert_eq!(pair.handle.net_device_type, -1, "a device of the host has no device handle");
        move_all(&host, &pair, 1);
        host.close(pair).unwrap();
    }
}

#[test]
fn messages_land_in_fragments_in_mode_unpack() {
    let host = Host::new(&[("SCATTER_MODE", "unpack"), ("SCATTER_SEED", "77")]).unwrap();
    let pair = host.pair(0).unwrap();
    // More messages than slots.
    move_all(&host, &pair, 2);
    host.close(pair).unwrap();
}

#[test]
fn fragments_lie_at_random_places_with_odd_lengths() {
    let host = Host::new(&[("SCATTER_MODE", "unpack")]).unwrap();
    let pair = host.pair(0).unwrap();
    let source = host.buffer(pair.sender, noise(1, 1 << 20)).unwrap();
    let mut target = host.buffer(pair.receiver, vec![0; 1 << 20]).unwrap();
    let mut reader = Reader::new(&pair.handle);
    let receive = until("irecv", || host.irecv(pair.receiver, &mut target, 0, 1 << 20)).unwrap();
    let send = until("isend", || host.isend(pair.sender, &source, 0, 1 << 20)).unwrap();
    until("the message", || {
        host.test(send)?;
        host.test(receive)
    })
    .unwrap();
    let mut gathered = vec![0; 1 << 20];
    let mut fragments = reader.gather(&mut gathered);
    assert!(gathered == *source.bytes);
    assert!(target.bytes.iter().all(|byte| *byte == 0), "the buffer is the host's to fill");
    let odd = fragments.iter().filter(|fragment| fragment.src_off % 2 == 1).count();
    assert!(odd > fragments.len() / 4, "{odd} of {}", fragments.len());
    let (last, others) = fragments.split_last().unwrap();
    assert!(others.iter().all(|fragment| (3073..=5119).contains(&fragment.len)), "{last:?}");
    assert!(!fragments.is_sorted_by_key(|fragment| fragment.src_off));
    fragments.sort_by_key(|fragment| fragment.src_off);
    let ends = |pair: &[crate::reader::Fragment]| pair[0].src_off + pair[0].len <= pair[1].src_off;
    assert!(fragments.windows(2).all(ends), "two fragments share bytes");
    host.close(pair).unwrap();
}

#[test]
fn a_receive_waits_for_a_free_slot_and_its_order() {
    let host = Host::new(&[("SCATTER_MODE", "unpack")]).unwrap();
    let pair = host.pair(0).unwrap();
    let source = host.buffer(pair.sender, noise(1, 64)).unwrap();
    let mut target = host.buffer(pair.receiver, vec![0; 64]).unwrap();
    let receives: Vec<_> =
        (0..16).map(|_| host.irecv(pair.receiver, &mut target, 0, 64).unwrap().unwrap()).collect();
    assert_eq!(host.irecv(pair.receiver, &mut target, 0, 64).unwrap(), None, "16 are under way");
    for _ in 0..2 {
        let send = host.isend(pair.sender, &source, 0, 64).unwrap().unwrap();
        until("sending", || host.test(send)).unwrap();
    }
    assert_eq!(host.test(receives[1]).unwrap_err(), ("test", 3), "the oldest comes first");
    until("receiving", || host.test(receives[0])).unwrap();
    until("receiving", || host.test(receives[1])).unwrap();
    assert_eq!(host.irecv(pair.receiver, &mut target, 0, 64).unwrap(), None, "not consumed yet");
    let early = host.consumed(pair.receiver, receives[1]).unwrap_err();
    assert_eq!(early, ("irecvConsumed", 3), "the oldest comes first");
    host.consumed(pair.receiver, receives[0]).unwrap();
    assert!(host.irecv(pair.receiver, &mut target, 0, 64).unwrap().is_some());
    host.close(pair).unwrap();
}

#[test]
fn a_small_bounce_buffer_makes_messages_wait_until_others_are_consumed() {
    // Room for 16 fragments, and messages of 10.
    let host = Host::new(&[
        ("SCATTER_MODE", "unpack"),
        ("SCATTER_JITTER_BYTES", "0"),
        ("SCATTER_BOUNCE_BYTES", "65536"),
    ])
    .unwrap();
    let pair = host.pair(0).unwrap();
    let source = host.buffer(pair.sender, noise(1, 40_960)).unwrap();
    let mut target = host.buffer(pair.receiver, vec![0; 40_960]).unwrap();
    let mut reader = Reader::new(&pair.handle);
    let mut post = || host.irecv(pair.receiver, &mut target, 0, 40_960).unwrap().unwrap();
    let receives = [post(), post()];
    for _ in 0..2 {
        let send = host.isend(pair.sender, &source, 0, 40_960).unwrap().unwrap();
        until("sending", || host.test(send)).unwrap();
    }
    until("the first", || host.test(receives[0])).unwrap();
    let mut gathered = vec![0; 40_960];
    let fragments = reader.gather(&mut gathered);
    assert!(fragments.iter().all(|fragment| fragment.src_off % 4096 == 0), "pages without jitter");
    for _ in 0..100 {
        assert_eq!(host.test(receives[1]).unwrap(), None, "there is no room for it");
    }
    host.consumed(pair.receiver, receives[0]).unwrap();
    until("the second", || host.test(receives[1])).unwrap();
    reader.gather(&mut gathered);
    assert!(gathered == *source.bytes);
    host.close(pair).unwrap();
}

#[test]
fn connections_of_a_device_share_its_bounce_buffer() {
    // Room for 16 fragments, and messages of 10.
    let host = Host::new(&[
        ("SCATTER_MODE", "unpack"),
        ("SCATTER_JITTER_BYTES", "0"),
        ("SCATTER_BOUNCE_BYTES", "65536"),
    ])
    .unwrap();
    let pairs = [host.pair(0).unwrap(), host.pair(0).unwrap()];
    let mut targets = [1, 2].map(|byte| vec![byte; 40_960]);
    let mut receives = Vec::new();
    for (pair, target) in pairs.iter().zip(&mut targets) {
        let mut target = host.buffer(pair.receiver, std::mem::take(target)).unwrap();
        let receive = host.irecv(pair.receiver, &mut target, 0, 40_960).unwrap().unwrap();
        let source = host.buffer(pair.sender, noise(1, 40_960)).unwrap();
        let send = host.isend(pair.sender, &source, 0, 40_960).unwrap().unwrap();
        until("sending", || host.test(send)).unwrap();
        receives.push((receive, target));
    }
    until("the first", || host.test(receives[0].0)).unwrap();
    for _ in 0..100 {
        assert_eq!(host.test(receives[1].0).unwrap(), None, "the first one has the room");
    }
    let [first, second] = pairs;
    let mut reader = Reader::new(&second.handle);
    // The first message was not consumed.
    host.close(first).unwrap();
    until("the second", || host.test(receives[1].0)).unwrap();
    let mut gathered = vec![0; 40_960];
    reader.gather(&mut gathered);
    assert!(gathered == noise(1, 40_960));
    host.close(second).unwrap();
}

#[test]
fn all_tables_tell_the_same_of_a_device() {
    let variables =
        [("SCATTER_MODE", "unpack"), ("SCATTER_SPEED", "0"), ("SCATTER_PCI", "/sys/odd/../path")];
    let host = Host::new(&variables).unwrap();
    let v8 = host.properties(0).unwrap();
    let mut v7 = std::mem::MaybeUninit::<PropsV7>::zeroed();
    let mut v11 = std::mem::MaybeUninit::<PropsV11>::zeroed();
    // SAFETY: the places are valid, and zeroes are valid for every field.
    let (v7, v9) = unsafe {
        assert_eq!(ncclNetPlugin_v7.get_properties.unwrap()(0, v7.as_mut_ptr()), 0);
        assert_eq!(ncclNetPlugin_v11.get_properties.unwrap()(0, v11.as_mut_ptr()), 0);
        (v7.assume_init(), v11.assume_init().v9)
    };
    // SAFETY: the plugin's strings live forever.
    let path = unsafe { std::ffi::CStr::from_ptr(v8.head.pci_path) };
    assert_eq!(path.to_str().unwrap(), "/sys/odd/../path");
    assert_eq!((v8.tail.speed, v7.v6.speed, v9.tail.speed), (0, 0, 0));
    assert_eq!((v8.head.name, v8.head.name), (v7.v6.name, v9.head.name));
    assert_eq!((v8.head.ptr_support, v8.tail.max_recvs), (PTR_HOST, 1));
    assert_eq!((v8.tail.net_device_type, v8.tail.net_device_version), (1, 7));
    assert_eq!((v7.net_device_type, v7.net_device_version), (1, 7));
    assert_eq!((v9.tail.net_device_type, v9.tail.net_device_version), (1, 7));
    assert_eq!(v9.max_p2p_bytes, 4 << 20);
}

#[test]
fn a_stranger_at_the_listener_is_no_connection() {
    use std::io::{Read, Write};
    let host = Host::new(&[]).unwrap();
    let (listener, handle) = host.listen(0).unwrap();
    let port = u16::from_be_bytes([handle[25], handle[26]]);
    let mut stranger = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    stranger.set_nonblocking(true).unwrap();
    until("the end of the stranger", || {
        assert_eq!(host.accept(listener, &mut no_handle())?, None);
        match stranger.read(&mut [0; 8]) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(None),
            _ => Ok(Some(())),
        }
    })
    .unwrap();
}

/// Resident pages of this process, according to `proc_pid_statm(5)`.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_bounce_buffer_is_in_memory_before_a_message_comes() {
    let bounce = ("SCATTER_BOUNCE_BYTES", "268435456");
    let host = Host::new(&[("SCATTER_MODE", "unpack"), bounce]).unwrap();
    let before = resident();
    let _pair = host.pair(0).unwrap();
    // Pages have at least 4 KiB, and others come and go.
    let page = (256 << 20) / (resident() - before).max(1);
    assert!(page < 128 << 10, "{page} bytes for each page that came");
}
