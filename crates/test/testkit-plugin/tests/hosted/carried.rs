//! Payload carried by a plugin arrives.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use polyrail::{Engine, Memory, Peer, Region, RegionError, Request};
use polyrail_gpu::fake::FakeDevice;

use crate::{carried, inside, pair, pattern, wait_for};

const SIZE: usize = 8 << 20;

/// Writes until every flow has carried something, with different bytes each time, and compares them.
fn write_until_all_carry((one, two, peer): (&Engine, &Engine, &Peer)) {
    let (from, to) = (one.register(vec![0; SIZE]).unwrap(), two.register(vec![0; SIZE]).unwrap());
    let remote = one.import(&to.describe()).unwrap();
    let mut round = 0;
    wait_for("every flow has a carrier", || {
        round += 1;
        let bytes = pattern(SIZE, round);
        from.write_at(0, &bytes).unwrap();
        one.write(peer, &from.all(), &remote.all()).unwrap().join().unwrap();
        let mut landed = vec![0; SIZE];
        to.read_at(0, &mut landed).unwrap();
        assert!(landed == bytes, "round {round}");
        carried(&one.stats()).iter().all(|bytes| *bytes > 0)
    });
}

#[test]
fn writes_reads_and_messages_arrive_over_two_devices() {
    let devices = [("SCATTER_DEVICES", "127.0.0.1,127.0.0.2")];
    inside("carried::writes_reads_and_messages_arrive_over_two_devices", &devices, || {
        let (one, two, peer) = pair(&[("chunk_bytes", "256KiB")]);
        assert_eq!(one.rails().len(), 2);
        write_until_all_carry((&one, &two, &peer));
        assert!(one.stats().peers[0].rails.iter().all(|rail| rail.hosted));

        let (near, far) =
            (one.register(vec![0; SIZE]).unwrap(), two.register(pattern(SIZE, 9)).unwrap());
        let remote = one.import(&far.describe()).unwrap();
        // Odd offsets and lengths, some too short to be carried.
        for (offset, len) in [(0, SIZE as u64), (1, 4097), (4095, 1 << 20), (77, 300), (5, 65_537)]
        {
            let (here, there) = (near.slice(0, len).unwrap(), remote.slice(offset, len).unwrap());
            one.read(&peer, &here, &there).unwrap().join().unwrap();
            let mut landed = vec![0; len as usize];
            near.read_at(0, &mut landed).unwrap();
            assert!(
                landed == pattern(SIZE, 9)[offset as usize..][..len as usize],
                "{offset}+{len}"
            );
        }
        assert!(
            carried(&two.stats()).iter().any(|bytes| *bytes > 0),
            "the answers were carried, too"
        );
    });
}

#[test]
fn many_pieces_wait_until_the_plugin_has_room_for_them() {
    inside("carried::many_pieces_wait_until_the_plugin_has_room_for_them", &[], || {
        const PIECE: u64 = 8 << 10;
        let (one, two, peer) = pair(&[("chunk_bytes", "1MiB")]);
        write_until_all_carry((&one, &two, &peer));
        let (from, to) =
            (one.register(pattern(SIZE, 3)).unwrap(), two.register(vec![0; SIZE]).unwrap());
        let remote = one.import(&to.describe()).unwrap();
        // The last piece first: in that order none are merged.
        let pieces = (0..SIZE as u64 / PIECE).rev().map(|piece| piece * PIECE);
        let request = pieces.fold(Request::write(&peer), |request, at| {
            request.segment(from.slice(at, PIECE).unwrap(), remote.slice(at, PIECE).unwrap())
        });
        let before: u64 = carried(&one.stats()).iter().sum();
        one.post(request).unwrap().join().unwrap();
        let after: u64 = carried(&one.stats()).iter().sum();
        assert!(after >= before + SIZE as u64, "{before} to {after} bytes");
        let mut landed = vec![0; SIZE];
        to.read_at(0, &mut landed).unwrap();
        assert!(landed == pattern(SIZE, 3));
    });
}

#[test]
fn messages_that_come_in_fragments_are_put_together() {
    let test = "carried::messages_that_come_in_fragments_are_put_together";
    inside(test, &[("SCATTER_MODE", "unpack"), ("SCATTER_DEVICES", "127.0.0.1,127.0.0.2")], || {
        for settings in [&[("payload", "none")], &[("payload", "crc32c")]] {
            let (one, two, peer) = pair(settings);
            write_until_all_carry((&one, &two, &peer));
        }
    });
}

#[test]
fn messages_to_the_host_may_land_in_place_though_others_come_in_fragments() {
    let test = "carried::messages_to_the_host_may_land_in_place_though_others_come_in_fragments";
    inside(test, &[("SCATTER_MODE", "unpack"), ("SCATTER_HOST_IN_PLACE", "1")], || {
        for settings in [&[("payload", "none")], &[("payload", "crc32c")]] {
            let (one, two, peer) = pair(settings);
            write_until_all_carry((&one, &two, &peer));
        }
    });
}

#[test]
fn memory_of_a_device_that_the_plugin_does_not_take_is_staged() {
    inside("carried::memory_of_a_device_that_the_plugin_does_not_take_is_staged", &[], || {
        for settings in [&[("payload", "none")], &[("payload", "crc32c")]] {
            let (one, two, peer) = pair(settings);
            write_until_all_carry((&one, &two, &peer));
            let device = FakeDevice::new(0, Duration::from_micros(200), 5);
            let memory = device.memory(&vec![0; SIZE]);
            let there = two.register(memory.clone()).unwrap();
            let remote = one.import(&there.describe()).unwrap();
            let from = one.register(pattern(SIZE, 4)).unwrap();
            let before: u64 = carried(&one.stats()).iter().sum();
            one.write(&peer, &from.all(), &remote.all()).unwrap().join().unwrap();
            let after: u64 = carried(&one.stats()).iter().sum();
            assert!(after > before, "{before} to {after} bytes");
            assert!(FakeDevice::contents(&memory) == pattern(SIZE, 4));
            // And back, over the flow's own connection.
            let back = one.register(vec![0; SIZE]).unwrap();
            one.read(&peer, &back.all(), &remote.all()).unwrap().join().unwrap();
            let mut landed = vec![0; SIZE];
            back.read_at(0, &mut landed).unwrap();
            assert!(landed == pattern(SIZE, 4));
        }
    });
}

/// Pieces lie one after another in the bounce buffer, and a device copies each to its place.
#[test]
fn many_pieces_go_through_the_ring() {
    inside("carried::many_pieces_go_through_the_ring", &[], || {
        const PIECE: u64 = 4 << 10;
        const LEN: usize = 1 << 20;
        let (one, two, peer) =
            pair(&[("chunk_bytes", "256KiB"), ("gpu_chunk_bytes", "256KiB"), ("payload", "none")]);
        write_until_all_carry((&one, &two, &peer));
        let device = FakeDevice::new(0, Duration::from_micros(200), 5);
        let memory = device.memory(&vec![0; LEN]);
        let there = two.register(memory.clone()).unwrap();
        let remote = one.import(&there.describe()).unwrap();
        let from = one.register(pattern(LEN, 4)).unwrap();
        // The last piece first: in that order none are merged.
        let pieces = (0..LEN as u64 / PIECE).rev().map(|piece| piece * PIECE);
        let request = pieces.fold(Request::write(&peer), |request, at| {
            request.segment(from.slice(at, PIECE).unwrap(), remote.slice(at, PIECE).unwrap())
        });
        let before: u64 = carried(&one.stats()).iter().sum();
        one.post(request).unwrap().join().unwrap();
        let after: u64 = carried(&one.stats()).iter().sum();
        assert!(after >= before + LEN as u64, "{before} to {after} bytes");
        assert!(FakeDevice::contents(&memory) == pattern(LEN, 4));
    });
}

#[test]
fn a_ring_that_is_too_small_gives_its_memory_to_a_larger_one() {
    inside("carried::a_ring_that_is_too_small_gives_its_memory_to_a_larger_one", &[], || {
        // One half of the limit is for arriving data: the large ring fits, but not both.
        let limit = [("staging_bytes", "64KiB"), ("staging_limit_bytes", "2MiB")];
        let chunks = [("chunk_bytes", "1MiB"), ("gpu_chunk_bytes", "1MiB")];
        let (one, two, peer) = pair(&[limit, chunks].concat());
        write_until_all_carry((&one, &two, &peer));
        let device = FakeDevice::new(0, Duration::from_micros(200), 5);
        for len in [64 << 10, 1 << 20] {
            let memory = device.memory(&vec![0; len]);
            let there = two.register(memory.clone()).unwrap();
            let remote = one.import(&there.describe()).unwrap();
            let from = one.register(pattern(len, 4)).unwrap();
            let transfer = one.write(&peer, &from.all(), &remote.all()).unwrap();
            transfer.wait(Duration::from_secs(20)).expect("the write ends").unwrap();
            assert!(FakeDevice::contents(&memory) == pattern(len, 4));
        }
    });
}

#[test]
fn checksums_cover_what_a_plugin_carries() {
    inside("carried::checksums_cover_what_a_plugin_carries", &[], || {
        let (one, two, peer) = pair(&[("payload", "crc32c")]);
        write_until_all_carry((&one, &two, &peer));
    });
}

/// Plugins may copy by instructions, which raise SIGBUS where a file was cut off.
#[test]
fn memory_of_a_file_is_sent_without_the_plugin() {
    inside("carried::memory_of_a_file_is_sent_without_the_plugin", &[], || {
        let (one, two, peer) = pair(&[("chunk_bytes", "256KiB")]);
        write_until_all_carry((&one, &two, &peer));
        let path = std::env::temp_dir().join(format!("polyrail-hosted-{}", std::process::id()));
        let mut options = File::options();
        let file = options.read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        file.write_all_at(&pattern(SIZE, 4), 0).unwrap();
        let memory = Memory::map_file(&file, 0, SIZE as u64).unwrap();
        let refused = one.register(memory.clone()).unwrap_err();
        assert_eq!(refused, RegionError::FileWithPlugin);
        let (from, to) = (Region::private(memory), two.register(vec![0; SIZE]).unwrap());
        let remote = one.import(&to.describe()).unwrap();
        let before: u64 = carried(&one.stats()).iter().sum();
        one.write(&peer, &from.all(), &remote.all()).unwrap().join().unwrap();
        let mut landed = vec![0; SIZE];
        to.read_at(0, &mut landed).unwrap();
        assert!(landed == pattern(SIZE, 4));
        for _ in 0..20 {
            let pending = one.write(&peer, &from.all(), &remote.all()).unwrap();
            file.set_len(1 << 20).unwrap();
            // The transfer was complete before, or fails.
            let _ = pending.join();
            assert!(one.write(&peer, &from.all(), &remote.all()).unwrap().join().is_err());
            file.set_len(SIZE as u64).unwrap();
        }
        let after: u64 = carried(&one.stats()).iter().sum();
        assert_eq!(after, before);
        write_until_all_carry((&one, &two, &peer));
    });
}

#[test]
fn a_region_that_ends_in_flight_is_not_touched_any_more() {
    inside("carried::a_region_that_ends_in_flight_is_not_touched_any_more", &[], || {
        let (one, two, peer) = pair(&[]);
        write_until_all_carry((&one, &two, &peer));
        for round in 0..40 {
            let (from, to) =
                (one.register(pattern(SIZE, round)).unwrap(), two.register(vec![0; SIZE]).unwrap());
            let remote = one.import(&to.describe()).unwrap();
            let pending = one.write(&peer, &from.all(), &remote.all()).unwrap();
            // Alternates between the sender's and the receiver's region.
            let ended = if round % 2 == 0 { from } else { to };
            drop(ended);
            // The transfer either was complete before, or fails. It never hangs.
            let _ = pending.join();
        }
        write_until_all_carry((&one, &two, &peer));
    });
}
