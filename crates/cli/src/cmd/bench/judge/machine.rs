//! What this machine copies when it copies as a transfer does: the measure for whether memory limits.
//!
//! The same pieces of memory in the same order and as large a footprint, by as many threads on the same
//! CPUs as were seen to move the transfer. Between two processes of one machine each piece goes through
//! a buffer that stays in a cache, as it goes through the kernel's packets: a copy from memory to memory
//! would be slower than what transfers do, and so no limit.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use polyrail::Memory;
use polyrail_host::CpuSet;
use polyrail_sys::threads::{allowed_cpus, bind_current, thread_cpu_time};

use crate::cmd::bench::faults;
use crate::cmd::bench::options::{Layout, Piece, WORKING_SET_BYTES};
use crate::fault::Fault;
use crate::together::{Begun, start_all};

/// How a transfer uses memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Use {
    pub(crate) layout: Layout,
    /// The largest piece that travels at once.
    pub(crate) chunk_bytes: u64,
    /// What the two ends walk through, at most: a region, or the staging of a device.
    pub(crate) footprint_bytes: [u64; 2],
    pub(crate) copies: Copies,
    /// For each thread that moves bytes the CPUs that it may run on; empty for any.
    pub(crate) movers: Vec<Vec<u32>>,
}

/// What this machine does to each byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Copies {
    /// From memory to memory: both ends are here.
    Once,
    /// Into the kernel and out of it: both ends are here.
    Twice,
    /// Into the kernel.
    Out,
    /// Out of it.
    In,
    /// Half of the bytes go out and half come in.
    OutAndIn,
}

/// How fast memory was copied so.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CopyRate {
    /// Payload, in GB/s (10^9 bytes): each byte counts once, however often it is copied.
    pub(crate) gb_per_s: f64,
    pub(crate) copies: Copies,
    pub(crate) threads: usize,
    /// The CPUs of the threads; empty for any.
    pub(crate) cpus: String,
    pub(crate) footprint_bytes: u64,
}

/// What came of measuring copies.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Copied {
    Rate(CopyRate),
    /// The threads that copied got this part of the CPU time that they wanted, or nothing was copied in time: what was
    /// copied is no limit of the machine.
    Starved {
        got: f64,
    },
}

/// What was measured already.
#[derive(Default)]
pub(crate) struct CopyRates {
    known: HashMap<Use, Copied>,
}

impl CopyRates {
    /// Measures for about a fifth of a second and never much longer than [`LIMIT`], unless it has.
    pub(crate) fn of(&mut self, used: &Use) -> Result<Copied, Fault> {
        self.within(used, LIMIT)
    }

    fn within(&mut self, used: &Use, limit: Duration) -> Result<Copied, Fault> {
        if let Some(copied) = self.known.get(used) {
            return Ok(copied.clone());
        }
        let copied = measure(used, limit)?;
        self.known.insert(used.clone(), copied.clone());
        Ok(copied)
    }
}

impl Copies {
    /// For people: what each byte takes, and that something is reached by it.
    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::Twice => "two copies per byte reach",
            Self::Once | Self::Out | Self::In | Self::OutAndIn => "one copy per byte reaches",
        }
    }
}

/// A packet of the loopback holds as much, and so does a cache of a core.
const PACKET_BYTES: u64 = 64 << 10;
const ROUNDS: u32 = 3;
const ROUND: Duration = Duration::from_millis(40);
/// How long all of it may take: taking the memory of two ends of the largest size takes a tenth of that.
const LIMIT: Duration = Duration::from_secs(3);
/// With less of the CPU time that it wants, what a thread copies says nothing of memory.
const GOT_LEAST: f64 = 0.1;
/// Beyond this the rest of a long list would be like its beginning.
const PIECES_MAX: usize = 1 << 16;

fn measure(used: &Use, limit: Duration) -> Result<Copied, Fault> {
    let (begin, cpu) = (Instant::now(), thread_cpu_time());
    let spans = used.footprint_bytes.map(|bytes| bytes.clamp(1, WORKING_SET_BYTES));
    let fill =
        |bytes| filled(bytes, begin + limit).map_err(|source| faults::mapping(bytes, source));
    let (Some(source), Some(dest)) = (fill(spans[0])?, fill(spans[1])?) else {
        let got =
            thread_cpu_time().saturating_sub(cpu).as_secs_f64() / begin.elapsed().as_secs_f64();
        return Ok(Copied::Starved { got });
    };
    let ends = [source, dest];
    let any = vec![Vec::new()];
    let movers = if used.movers.is_empty() { &any } else { &used.movers };
    let pieces = pieces(used, spans, movers.len());
    // Other work may slow some rounds down, so the best one shows what the machine can do.
    let mut best = Round { gb_per_s: 0.0, got: 0.0 };
    for _ in 0..ROUNDS {
        let round = round(&ends, &pieces, used.copies, movers)?;
        let is_better = match [best.got, round.got].map(|got| got >= GOT_LEAST) {
            [true, true] => round.gb_per_s > best.gb_per_s,
            _ => round.got > best.got,
        };
        if is_better {
            best = round;
        }
        if begin.elapsed() > limit {
            break;
        }
    }
    if best.got < GOT_LEAST {
        return Ok(Copied::Starved { got: best.got });
    }
    let cpus: CpuSet = movers.iter().flatten().copied().collect();
    Ok(Copied::Rate(CopyRate {
        gb_per_s: best.gb_per_s,
        copies: used.copies,
        threads: movers.len(),
        cpus: if movers.iter().any(Vec::is_empty) { String::new() } else { cpus.to_string() },
        footprint_bytes: spans[0].max(spans[1]),
    }))
}

/// Written once, so that every page is there and its own; `None` if that takes longer than until then.
fn filled(bytes: u64, until: Instant) -> std::io::Result<Option<Memory>> {
    let memory = Memory::anonymous(bytes)?;
    let block = vec![1; PACKET_BYTES.min(bytes) as usize];
    for offset in (0..bytes).step_by(block.len()) {
        let part = &block[..(bytes - offset).min(block.len() as u64) as usize];
        // The range is inside by construction.
        memory.write_at(offset, part).map_err(std::io::Error::other)?;
        if Instant::now() > until {
            return Ok(None);
        }
    }
    Ok(Some(memory))
}

/// The pieces of all slots in the order of the transfers, dealt to the threads, none larger than a
/// packet. Each thread stays in its own part of both memories, so that no two write to one place.
fn pieces(used: &Use, spans: [u64; 2], threads: usize) -> Vec<Vec<Piece>> {
    let parts = spans.map(|span| (span / threads as u64).max(1));
    let most = PACKET_BYTES.min(used.chunk_bytes).min(parts[0]).min(parts[1]);
    let all = (0..used.layout.slots).flat_map(|slot| used.layout.pieces(slot));
    let cut = all.flat_map(|Piece { source, dest, len }| {
        (0..len).step_by(most as usize).map(move |at| (source + at, dest + at, most.min(len - at)))
    });
    let within = |thread: usize, offset: u64, len: u64, part: u64| {
        let offset = offset % part;
        thread as u64 * part + if offset + len <= part { offset } else { part - len }
    };
    let mut dealt = vec![Vec::new(); threads];
    for (index, (source, dest, len)) in cut.take(PIECES_MAX).enumerate() {
        let thread = index % threads;
        dealt[thread].push(Piece {
            source: within(thread, source, len, parts[0]),
            dest: within(thread, dest, len, parts[1]),
            len,
        });
    }
    dealt
}

/// What all threads did in a round.
struct Round {
    /// Of payload.
    gb_per_s: f64,
    /// The part of the CPU time that they wanted.
    got: f64,
}

/// What a thread did in a round.
struct Part {
    moved_bytes: u64,
    elapsed: Duration,
    cpu: Duration,
}

/// All threads at once, each with its own pieces, over and over.
fn round(
    ends: &[Memory; 2],
    pieces: &[Vec<Piece>],
    copies: Copies,
    movers: &[Vec<u32>],
) -> Result<Round, Fault> {
    let work = |pieces: &[Piece], cpus: &[u32]| -> Result<Part, Fault> {
        let bound = if cpus.is_empty() { Ok(()) } else { bind_current(cpus) };
        bound.map_err(|source| Fault::system("binding a thread to CPUs", source))?;
        let mut packet = vec![0; PACKET_BYTES as usize];
        let (begin, cpu) = (Instant::now(), thread_cpu_time());
        let (mut moved, mut looked) = (0, 0);
        'round: while begin.elapsed() < ROUND && !pieces.is_empty() {
            for piece in pieces {
                copy(ends, piece, copies, &mut packet[..piece.len as usize])?;
                moved += piece.len;
                // Looking at the clock takes as long as copying some hundred bytes.
                if moved - looked >= PACKET_BYTES {
                    looked = moved;
                    if begin.elapsed() >= ROUND {
                        break 'round;
                    }
                }
            }
        }
        let cpu = thread_cpu_time().saturating_sub(cpu);
        Ok(Part { moved_bytes: moved, elapsed: begin.elapsed().max(ROUND), cpu })
    };
    let parts: Result<Vec<_>, _> = std::thread::scope(|scope| {
        let work = &work;
        let both = pieces.iter().zip(movers);
        let failed = |source| Fault::system("starting threads that copy", source);
        let begun = start_all(scope, both.map(|(pieces, cpus)| move || work(pieces, cpus)));
        begun.map_err(failed)?.into_iter().filter_map(Begun::join).collect()
    });
    Ok(undisturbed(&parts?, cpus_for(movers)?))
}

/// How many CPUs the threads may use between them.
fn cpus_for(movers: &[Vec<u32>]) -> Result<usize, Fault> {
    let failed = |source| Fault::system("reading which CPUs this process may use", source);
    if movers.iter().any(Vec::is_empty) {
        return Ok(allowed_cpus().map_err(failed)?.len());
    }
    let cpus: HashSet<_> = movers.iter().flatten().collect();
    Ok(cpus.len())
}

/// The rate of all threads, had no other program taken CPU time from them: a copy and a transfer that both wait for
/// a CPU are as slow as each other, and memory is not why.
fn undisturbed(parts: &[Part], cpus: usize) -> Round {
    let sum = |value: &dyn Fn(&Part) -> f64| parts.iter().map(value).sum::<f64>();
    let rate = sum(&|part| part.moved_bytes as f64 / 1e9 / part.elapsed.as_secs_f64());
    let used = sum(&|part| part.cpu.as_secs_f64());
    let share = parts.len().min(cpus) as f64 / parts.len().max(1) as f64;
    let there = share * sum(&|part| part.elapsed.as_secs_f64());
    let got = if there > 0.0 { (used / there).min(1.0) } else { 0.0 };
    Round { gb_per_s: if got > 0.0 { rate / got } else { rate }, got }
}

fn copy(
    [source, dest]: &[Memory; 2],
    piece: &Piece,
    copies: Copies,
    packet: &mut [u8],
) -> Result<(), Fault> {
    let half = packet.len() / 2;
    let copied = match copies {
        Copies::Once => source.copy_to(piece.source, (dest, piece.dest), piece.len),
        Copies::Twice => {
            source.read_at(piece.source, packet).and_then(|()| dest.write_at(piece.dest, packet))
        }
        Copies::Out => source.read_at(piece.source, packet),
        Copies::In => dest.write_at(piece.dest, packet),
        Copies::OutAndIn => {
            let (out, into) = packet.split_at_mut(half);
            source.read_at(piece.source, out).and_then(|()| dest.write_at(piece.dest, into))
        }
    };
    copied.map_err(|error| Fault::system("copying memory", std::io::Error::other(error)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::together::tests::{is_alone, without_more_threads};

    fn usual(size: u64) -> Use {
        let layout = Layout::new(size, 1, 16);
        Use {
            layout,
            chunk_bytes: 512 << 10,
            footprint_bytes: [layout.region_bytes(); 2],
            copies: Copies::Twice,
            movers: vec![Vec::new(); 2],
        }
    }

    #[test]
    fn memory_that_is_not_there_has_help_with_options_of_the_bench() {
        let test = "memory_that_is_not_there_has_help_with_options_of_the_bench";
        if is_alone(&format!("cmd::bench::judge::machine::tests::{test}")) {
            measure_without_memory();
        }
    }

    fn measure_without_memory() {
        let used = Use { footprint_bytes: [256 << 20; 2], ..usual(1 << 20) };
        let fault = without_more_threads(|| measure(&used, LIMIT)).err().unwrap();
        assert_eq!(fault.code, polyrail_report::exit::ENVIRONMENT, "{fault}");
        assert!(fault.help.unwrap().contains("--sizes"));
    }

    #[test]
    fn pieces_are_those_of_the_transfers_cut_to_packets_and_dealt_to_threads_that_never_meet() {
        let used = usual(1 << 20);
        let span = used.layout.region_bytes();
        let dealt = pieces(&used, [span; 2], 1);
        assert_eq!(dealt[0].iter().map(|piece| piece.len).sum::<u64>(), span);
        let first = used.layout.pieces(0).next().unwrap();
        let sources = (dealt[0][0].source, dealt[0][1].source);
        assert_eq!(sources, (first.source, first.source + PACKET_BYTES));

        // Also in a ring of staging that is smaller than a transfer.
        for ring in [span, 1 << 20, 100_000] {
            for (thread, pieces) in pieces(&used, [span, ring], 3).iter().enumerate() {
                let part = ring / 3;
                let mine = thread as u64 * part..(thread as u64 + 1) * part;
                let is_mine = |piece: &Piece| {
                    mine.contains(&piece.dest) && piece.dest + piece.len <= mine.end
                };
                assert!(!pieces.is_empty() && pieces.iter().all(is_mine), "{ring}: {mine:?}");
            }
        }
        let tiny = pieces(&usual(8), [usual(8).layout.region_bytes(); 2], 2);
        assert!(tiny.iter().all(|own| own.len() == 2048 && own.iter().all(|one| one.len == 8)));
    }

    #[test]
    fn a_rate_names_its_threads_cpus_and_footprint_and_is_measured_once() {
        let cpu = polyrail_sys::threads::allowed_cpus().unwrap()[0];
        let mut used = usual(64 << 10);
        (used.movers, used.footprint_bytes) = (vec![vec![cpu]; 3], [1 << 20; 2]);
        let mut rates = CopyRates::default();
        match rates.of(&used).unwrap() {
            Copied::Rate(rate) => {
                assert!(rate.gb_per_s > 0.0);
                assert_eq!((rate.threads, rate.footprint_bytes), (3, 1 << 20));
                assert_eq!(rate.cpus, cpu.to_string());
                let again = rates.of(&used).unwrap();
                assert_eq!(again, Copied::Rate(rate), "what is known is not measured again");
            }
            // On a machine as busy as that.
            Copied::Starved { got } => assert!(got < GOT_LEAST, "{got}"),
        }
    }

    #[test]
    fn what_takes_too_long_or_gets_next_to_no_cpu_time_is_no_rate() {
        let used = usual(16 << 20);
        let copied = CopyRates::default().within(&used, Duration::ZERO).unwrap();
        assert!(matches!(copied, Copied::Starved { .. }), "{copied:?}");
        let part = Part {
            moved_bytes: 1_000_000,
            elapsed: Duration::from_secs(1),
            cpu: Duration::from_millis(20),
        };
        let round = undisturbed(&[part], 2);
        assert!((round.got - 0.02).abs() < 1e-9 && round.got < GOT_LEAST, "{}", round.got);
    }

    #[test]
    fn cpu_time_that_others_took_is_left_out_and_threads_that_share_a_cpu_count_it_once() {
        let part = |cpu_ms| Part {
            moved_bytes: 1_000_000_000,
            elapsed: Duration::from_secs(1),
            cpu: Duration::from_millis(cpu_ms),
        };
        let near = |parts: &[Part], cpus, rate: f64| {
            let found = undisturbed(parts, cpus).gb_per_s;
            assert!((found - rate).abs() < 1e-9, "{found} {rate}");
        };
        near(&[part(1000), part(1000)], 2, 2.0);
        near(&[part(500), part(500)], 2, 4.0);
        near(&[part(500), part(500)], 1, 2.0);
        near(&[part(1010)], 16, 1.0);
        near(&[part(0)], 1, 1.0);
        assert_eq!(cpus_for(&[vec![0, 1], vec![1]]).unwrap(), 2);
        assert_eq!(cpus_for(&[vec![0], vec![]]).unwrap(), allowed_cpus().unwrap().len());
    }

    #[test]
    fn a_cpu_that_is_not_there_is_an_error_and_leaves_no_thread_waiting() {
        let mut used = usual(64 << 10);
        used.footprint_bytes = [1 << 20; 2];
        used.movers = vec![Vec::new(), vec![1 << 20]];
        let error = CopyRates::default().of(&used).unwrap_err().to_string();
        assert!(error.contains("binding a thread to CPUs"), "{error}");
    }
}
