//! Attackers that send more than the engine can read, so that their connections never run dry.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::Ordering;

use polyrail_proto::TransferId;
use polyrail_proto::hello::{Card, FlowHello};
use polyrail_proto::wire::{AckFrame, CHUNK_HEADER_BYTES, ChunkHeader};

use super::{Victim, trial};
use crate::common::acquaintance::Acquaintance;
use crate::common::stranger::{Stranger, card, frame, hello, write_header};

/// One thread serves all flows of the rail, in both directions.
const ONE_THREAD: &[(&str, &str)] = &[("proxy_layout", "merged")];
/// Bytes that a connection brings. An engine takes some tenths of a second for them.
const FLOOD_BYTES: usize = 32 << 20;
const EMPTY_WRITES: u64 = (FLOOD_BYTES / CHUNK_HEADER_BYTES) as u64;
/// Least rounds of the honest engine meanwhile. If it gets its turns, it has some ten times as many.
const LEAST_ROUNDS: u64 = 5;

/// Writes these records at once, and reads and drops what the engine sends.
fn flood(stream: &TcpStream, records: &[Vec<u8>]) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut left = vec![0; 1 << 20];
            while (&*stream).read(&mut left).is_ok_and(|bytes| bytes > 0) {}
        });
        for record in records {
            (&*stream).write_all(record).unwrap();
        }
        stream.shutdown(Shutdown::Both).unwrap();
    });
}

/// Seals frames in advance, which takes longer than the engine needs to read them.
fn sealed(from: &mut Stranger, frames: impl Iterator<Item = Vec<u8>>) -> Vec<Vec<u8>> {
    let mut bytes = 0;
    let records = from.records_of(frames);
    let records = records.take_while(|record| {
        bytes += record.len();
        bytes <= FLOOD_BYTES
    });
    records.collect()
}

/// Checks that the honest engine gets its turns while these connections bring all their bytes.
fn leaves_turns(victim: &Victim, floods: &[(TcpStream, Vec<Vec<u8>>)]) {
    let before = victim.rounds.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        for (stream, records) in floods {
            scope.spawn(|| flood(stream, records));
        }
    });
    let rounds = victim.rounds.load(Ordering::Relaxed) - before;
    assert!(rounds >= LEAST_ROUNDS, "{rounds} rounds");
}

fn empty_write(number: u64) -> Vec<u8> {
    let transfer = TransferId(number);
    frame(ChunkHeader { transfer, ..write_header(0, 0) }, &[], &[], &[])
}

#[test]
fn empty_writes_without_end_leave_others_their_turn() {
    trial(ONE_THREAD, |victim| {
        let own: Card = card(&["127.0.0.1:9".parse().unwrap()]);
        let floods: Vec<_> = (0..2)
            .map(|flow| {
                let hello = hello(&victim.engine, own.clone());
                let hello = FlowHello { flow, flows: 2, ..hello };
                let mut liar = Stranger::welcome_at(&victim.engine, hello);
                let first = 1 + u64::from(flow) * EMPTY_WRITES;
                let writes = (first..first + EMPTY_WRITES).map(empty_write);
                let records = sealed(&mut liar, writes);
                (liar.stream.try_clone().unwrap(), records)
            })
            .collect();
        leaves_turns(victim, &floods);
    });
}

#[test]
fn acknowledgements_without_end_leave_others_their_turn() {
    trial(ONE_THREAD, |victim| {
        let floods: Vec<_> = (0..2)
            .map(|_| {
                let mut liar = Acquaintance::of(&victim.engine).from_engine;
                let nothing_new = std::iter::repeat_with(|| AckFrame::Ack { sequence: 0 }.encode());
                let records = sealed(&mut liar, nothing_new.map(|ack| ack.to_vec()));
                (liar.stream.try_clone().unwrap(), records)
            })
            .collect();
        leaves_turns(victim, &floods);
    });
}
