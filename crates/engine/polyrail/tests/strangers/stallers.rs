//! Peers that live and make no progress: `peer_timeout_ms` counts progress, not signs of life.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::stranger::{Stranger, card, metadata};
use crate::common::*;
use polyrail::TransferError;
use polyrail_proto::hello::Card;
use polyrail_proto::wire::{AckFrame, CHUNK_HEADER_BYTES, ChunkHeader, RefusalCode};

const TIMEOUT: Duration = Duration::from_millis(1000);

/// The behaviour of a peer on a flow, until the flow ends.
type Habit = fn(&mut Stranger, &AtomicBool, &AtomicU64);

/// A peer that accepts every flow, however often.
struct Staller {
    card: Card,
    over: Arc<AtomicBool>,
    /// Frames that it took.
    frames: Arc<AtomicU64>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Staller {
    fn new(habit: Habit) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let card = card(&[listener.local_addr().unwrap()]);
        listener.set_nonblocking(true).unwrap();
        let (over, frames) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let thread = {
            let (card, over, frames) = (card.clone(), over.clone(), frames.clone());
            std::thread::spawn(move || {
                std::thread::scope(|scope| {
                    while !over.load(Ordering::Relaxed) {
                        let Ok((stream, _)) = listener.accept() else {
                            // Polls for the end of the test as well as for connections.
                            std::thread::sleep(Duration::from_millis(1));
                            continue;
                        };
                        stream.set_nonblocking(false).unwrap();
                        let (mut flow, _) = Stranger::with(stream);
                        flow.welcome(&card);
                        let (over, frames) = (&over, &frames);
                        scope.spawn(move || habit(&mut flow, over, frames));
                    }
                });
            })
        };
        Self { card, over, frames, thread: Some(thread) }
    }
}

impl Drop for Staller {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("a peer panicked");
        }
    }
}

fn never_reads(_: &mut Stranger, over: &AtomicBool, _: &AtomicU64) {
    while !over.load(Ordering::Relaxed) {
        // Polls for the end of the test.
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn says_that_it_lives(flow: &mut Stranger, over: &AtomicBool, _: &AtomicU64) {
    let nothing_new = AckFrame::Ack { sequence: 0 }.encode();
    while !over.load(Ordering::Relaxed) {
        flow.say(&nothing_new);
        // A sign of life has this interval.
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn is_always_busy(flow: &mut Stranger, _: &AtomicBool, frames: &AtomicU64) {
    let mut head = [0; CHUNK_HEADER_BYTES];
    for sequence in 1.. {
        if flow.read_exact(&mut head).is_err() {
            return;
        }
        let header = ChunkHeader::decode(&head).unwrap();
        let mut rest = vec![0; header.body_bytes() + header.payload_on_wire() as usize];
        let refusal = AckFrame::Refusal { sequence, code: RefusalCode::Busy }.encode();
        if flow.read_exact(&mut rest).is_err() {
            return;
        }
        flow.say(&refusal);
        frames.fetch_add(1, Ordering::Relaxed);
    }
}

/// Writes to a peer with that habit, which must be given up in time. Returns the number of frames that it read.
fn is_given_up(habit: Habit) -> u64 {
    let settings = [("peer_timeout_ms", "1000"), ("rail_stall_ms", "100")];
    let engine = one_rail(&settings);
    let staller = Staller::new(habit);
    let peer = engine.add_peer(&metadata(&staller.card).encode()).unwrap();
    let source = filled(&engine, 64 << 20, 1);
    let mut description = source.describe();
    description[6..22].copy_from_slice(&staller.card.instance.0.to_le_bytes());
    let theirs = engine.import(&description).unwrap();
    let since = Instant::now();
    let write = engine.write(&peer, &source.all(), &theirs.all()).unwrap();
    match write.ended() {
        Err(TransferError::PeerLost { why, .. }) => {
            assert!(matches!(why, polyrail::LostReason::NoProgress { .. }), "{why}");
        }
        other => panic!("{other:?}"),
    }
    // Once more for the reconnection after an outage, and some for a busy machine.
    assert!(since.elapsed() < 15 * TIMEOUT, "{:?}", since.elapsed());
    staller.frames.load(Ordering::Relaxed)
}

#[test]
fn a_peer_that_says_hello_again_and_again_and_never_reads_is_given_up() {
    is_given_up(never_reads);
}

#[test]
fn a_peer_that_acknowledges_nothing_new_is_given_up() {
    is_given_up(says_that_it_lives);
}

#[test]
fn a_peer_that_is_always_busy_is_given_up_and_not_asked_without_a_pause() {
    let frames = is_given_up(is_always_busy);
    assert!((16..2000).contains(&frames), "{frames} frames in a second");
}
