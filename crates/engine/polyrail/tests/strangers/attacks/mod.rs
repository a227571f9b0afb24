//! A proven peer that attacks. Each test is one attack on its own engine, while an honest engine writes to the victim,
//! reads back and compares. When the attack is over, guard bytes that no attacker may change must be unchanged, and the
//! honest engine must go on.
//!
//! | module | the attacker lies about |
//! |---|---|
//! | `arriving` | its proofs, its hello, how it comes and goes |
//! | `floods` | nothing: it sends more than the engine can read |
//! | `frames` | chunks, acknowledgements, numbers, messages that were not asked for |
//! | `regions` | memory that it may not read, or never lets go of |
//! | `processes` | the process and the host that it is: rings, pages, streams, offers, descriptors |

mod arriving;
mod floods;
mod frames;
mod processes;
mod regions;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use polyrail::{Engine, Memory, Region};
use polyrail_proto::RegionKey;
use polyrail_proto::wire::{ACK_BYTES, AckFrame, Place};

use crate::common::stranger::{Stranger, key_of};
use crate::common::*;

const GUARD: u8 = 0xa5;
const GUARD_BYTES: usize = 1 << 20;
/// Bytes that the honest engine moves each way in a round.
const HONEST_BYTES: usize = 256 << 10;
/// Long enough to distinguish a missing answer from a late one.
const SILENCE: Duration = Duration::from_millis(100);

/// The engine that is attacked.
struct Victim {
    engine: Engine,
    /// Filled with [`GUARD`]; the attacker may write and read it, and writes nothing else there.
    region: Region,
    key: RegionKey,
    /// Number of rounds of writing and reading back that the honest engine has begun.
    rounds: Arc<AtomicU64>,
}

impl Victim {
    fn place(&self, offset: u64, len: u64) -> Place {
        Place { key: self.key, offset, len }
    }
}

/// Settings under which failures end soon.
const IMPATIENT: &[(&str, &str)] = &[("peer_timeout_ms", "2000"), ("reconnect_max_ms", "500")];

/// Runs an attack while an honest engine moves and compares data.
fn trial(settings: &[(&str, &str)], attack: impl FnOnce(&Victim)) {
    let own = [("rails", "127.0.0.1"), ("channels", "1"), ("path", "auto")];
    let settings = [&own, settings].concat();
    let build = || builder().config(config(&settings)).apart().build().unwrap();
    let (engine, honest) = (build(), build());
    let region = engine.register(Memory::from(vec![GUARD; GUARD_BYTES])).unwrap();
    let (over, rounds) = (AtomicBool::new(false), Arc::new(AtomicU64::new(0)));
    let victim = Victim { engine, key: key_of(&region), region, rounds: rounds.clone() };
    let to_victim = honest.add_peer(&victim.engine.metadata()).unwrap();
    let target = zeroed(&victim.engine, HONEST_BYTES);
    let (there, back) = (remote(&honest, &target), zeroed(&honest, HONEST_BYTES));
    std::thread::scope(|scope| {
        let moving = scope.spawn(|| {
            let mut last = None;
            // Three rounds at least after the attack.
            while last.is_none_or(|last| rounds.load(Ordering::Relaxed) < last + 3) {
                let round = rounds.fetch_add(1, Ordering::Relaxed);
                if over.load(Ordering::Relaxed) {
                    last.get_or_insert(round);
                }
                let source = filled(&honest, HONEST_BYTES, round);
                honest.write(&to_victim, &source.all(), &there.all()).unwrap().ended().unwrap();
                honest.read(&to_victim, &back.all(), &there.all()).unwrap().ended().unwrap();
                assert!(bytes(&back) == pattern(HONEST_BYTES, round), "round {round}");
            }
        });
        let tell = TellOnDrop(&over);
        wait_for("the honest engine to be at work", || rounds.load(Ordering::Relaxed) > 1);
        attack(&victim);
        drop(tell);
        moving.join().unwrap();
    });
    assert!(bytes(&victim.region).iter().all(|byte| *byte == GUARD), "guard bytes were changed");
    assert_eq!(victim.engine.stats().callback_panics, 0);
}

/// Answers on a flow until it is silent or closed.
#[derive(Debug, Default)]
struct Heard {
    /// The last frame that was acknowledged.
    acknowledged: u64,
    refused: usize,
    is_closed: bool,
}

fn heard(from: &mut Stranger) -> Heard {
    from.stream.set_read_timeout(Some(SILENCE)).unwrap();
    let mut heard = Heard::default();
    let mut answer = [0; ACK_BYTES];
    loop {
        match from.read_exact(&mut answer) {
            Ok(()) => match AckFrame::decode(&answer).unwrap() {
                AckFrame::Ack { sequence } => heard.acknowledged = heard.acknowledged.max(sequence),
                AckFrame::Refusal { .. } => heard.refused += 1,
                AckFrame::Bye | AckFrame::Words(_) => {}
            },
            Err(error) => {
                use std::io::ErrorKind::{TimedOut, WouldBlock};
                heard.is_closed = !matches!(error.kind(), TimedOut | WouldBlock);
                from.stream.set_read_timeout(Some(LONG)).unwrap();
                return heard;
            }
        }
    }
}
