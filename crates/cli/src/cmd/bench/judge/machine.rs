//! Rate at which this machine copies memory in the same way as a transfer: the reference for whether memory is the
//! limit.
//!
//! The copies use the same pieces of memory in the same order, with the same footprint, on as many threads and the same
//! CPUs as moved the transfer. Between two processes of one machine each piece goes through a buffer that stays in a
//! cache, as it goes through the kernel's packets. A copy from memory to memory would be slower than transfers, and
//! therefore not a limit.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use polyrail::Memory;
use polyrail_host::CpuSet;
use polyrail_sys::threads::{allowed_cpus, bind_current, thread_cpu_time};

use super::known::KnownRates;
use crate::cmd::bench::faults;
use crate::cmd::bench::options::{Layout, Piece};
use crate::fault::Fault;
use crate::host::unix_ms;
use crate::together::{Begun, start_all};

/// Use of memory by a transfer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Use {
    pub(crate) layout: Layout,
    /// Maximum size of a piece that travels at once.
    pub(crate) chunk_bytes: u64,
    /// Maximum number of bytes that each end walks through: a region, or a device's bounce buffers.
    pub(crate) footprint_bytes: [u64; 2],
    pub(crate) copies: Copies,
    /// CPUs on which each thread that moves bytes may run; empty for any.
    pub(crate) movers: Vec<Vec<u32>>,
}

impl Use {
    /// Returns the bytes of memory that measuring needs.
    pub(crate) fn memory_bytes(&self) -> u64 {
        spans(self).iter().sum()
    }
}

/// Copies that this machine makes of each byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Copies {
    /// From memory to memory: both ends are on this machine.
    Once,
    /// Into the kernel and out of it: both ends are on this machine.
    Twice,
    /// Into the kernel.
    Out,
    /// Out of the kernel.
    In,
    /// Half of the bytes go out and half come in.
    OutAndIn,
}

/// Measured rate of copies.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CopyRate {
    /// Payload, in GB/s (10^9 bytes): each byte counts once, however often it is copied.
    pub(crate) gb_per_s: f64,
    pub(crate) copies: Copies,
    pub(crate) threads: usize,
    /// CPUs of the threads; empty for any.
    pub(crate) cpus: String,
    pub(crate) footprint_bytes: u64,
    /// Age of the measurement if an earlier run made it; `None` if this run did.
    pub(crate) age: Option<Duration>,
}

/// Result of measuring copies.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Copied {
    Rate(CopyRate),
    /// The copying threads got this share of the CPU time that they wanted, or the time ran out before copying. The
    /// rate is then not a limit of the machine.
    Starved {
        got: f64,
    },
}

/// Rates of copies that are known already.
#[derive(Default)]
pub(crate) struct CopyRates {
    known: HashMap<Use, Copied>,
    /// Rates of earlier runs.
    kept: Option<KnownRates>,
    /// Ignore the rates of earlier runs.
    is_fresh: bool,
}

impl CopyRates {
    pub(crate) fn new(kept: Option<KnownRates>, is_fresh: bool) -> Self {
        Self { known: HashMap::new(), kept, is_fresh }
    }

    /// Returns the rate, from this run or an earlier one if known. Otherwise measures it, for about a fifth of a second
    /// and never much longer than [`LIMIT`]. A rate of an earlier run that is below `reached` is measured again.
    pub(crate) fn of(&mut self, used: &Use, reached: f64) -> Result<Copied, Fault> {
        self.within(used, reached, LIMIT)
    }

    fn within(&mut self, used: &Use, reached: f64, limit: Duration) -> Result<Copied, Fault> {
        if let Some(copied) = self.known.get(used) {
            return Ok(copied.clone());
        }
        let copied = match self.earlier(used, reached) {
            Some(rate) => Copied::Rate(rate),
            None => self.measured(used, limit)?,
        };
        self.known.insert(used.clone(), copied.clone());
        Ok(copied)
    }

    fn earlier(&self, used: &Use, reached: f64) -> Option<CopyRate> {
        let kept = self.kept.as_ref().filter(|_| !self.is_fresh)?;
        let (gb_per_s, age) = kept.get(used, unix_ms())?;
        (gb_per_s >= reached).then(|| CopyRate::new(used, gb_per_s, Some(age)))
    }

    fn measured(&mut self, used: &Use, limit: Duration) -> Result<Copied, Fault> {
        let (copied, got) = measure(used, limit)?;
        self.keep(used, &copied, got);
        Ok(copied)
    }

    /// Keeps the rate for other runs, if the copying threads got the CPU time that they wanted.
    fn keep(&mut self, used: &Use, copied: &Copied, got: f64) {
        if let (Some(kept), Copied::Rate(rate)) = (&mut self.kept, copied)
            && got >= GOT_TO_KEEP
        {
            kept.keep(used, rate.gb_per_s, unix_ms());
        }
    }
}

impl CopyRate {
    fn new(used: &Use, gb_per_s: f64, age: Option<Duration>) -> Self {
        let cpus: CpuSet = used.movers.iter().flatten().copied().collect();
        let is_any = used.movers.is_empty() || used.movers.iter().any(Vec::is_empty);
        let [here, there] = spans(used);
        Self {
            gb_per_s,
            copies: used.copies,
            threads: used.movers.len().max(1),
            cpus: if is_any { String::new() } else { cpus.to_string() },
            footprint_bytes: here.max(there),
            age,
        }
    }
}

/// Returns the sizes of the memory to copy from and to.
fn spans(used: &Use) -> [u64; 2] {
    used.footprint_bytes.map(|bytes| bytes.clamp(1, SPAN_MAX))
}

impl Copies {
    /// Returns the beginning of a sentence about the rate, for people: the copies per byte, with the verb.
    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::Twice => "two copies per byte reach",
            Self::Once | Self::Out | Self::In | Self::OutAndIn => "one copy per byte reaches",
        }
    }
}

/// Size of a packet on the loopback, which fits into a core's cache.
const PACKET_BYTES: u64 = 64 << 10;
const ROUNDS: u32 = 3;
const ROUND: Duration = Duration::from_millis(40);
/// Time limit of the whole measurement. Preparing the memory of two ends of the largest size takes a tenth of it.
const LIMIT: Duration = Duration::from_secs(3);
/// Minimum share of the wanted CPU time. With less, a thread's copies say nothing about memory.
const GOT_LEAST: f64 = 0.1;
/// Minimum share of the wanted CPU time for a rate that other runs may use.
const GOT_TO_KEEP: f64 = 0.8;
/// Maximum memory of an end: far more than caches hold, and still quick to fill.
const SPAN_MAX: u64 = 64 << 20;
/// Maximum number of pieces. The rest of a longer list would be like its beginning.
const PIECES_MAX: usize = 1 << 16;

/// Measures the rate. Also returns the share of the wanted CPU time that the threads got.
fn measure(used: &Use, limit: Duration) -> Result<(Copied, f64), Fault> {
    let (begin, cpu) = (Instant::now(), thread_cpu_time());
    let spans = spans(used);
    let fill =
        |bytes| filled(bytes, begin + limit).map_err(|source| faults::mapping(bytes, source));
    let (Some(source), Some(dest)) = (fill(spans[0])?, fill(spans[1])?) else {
        let got =
            thread_cpu_time().saturating_sub(cpu).as_secs_f64() / begin.elapsed().as_secs_f64();
        return Ok((Copied::Starved { got }, got));
    };
    let ends = [source, dest];
    let any = vec![Vec::new()];
    let movers = if used.movers.is_empty() { &any } else { &used.movers };
    let pieces = pieces(used, spans, movers.len());
    // Other work may slow some rounds down, so the best round shows the machine's limit.
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
    let got = best.got;
    let copied = match got < GOT_LEAST {
        true => Copied::Starved { got },
        false => Copied::Rate(CopyRate::new(used, best.gb_per_s, None)),
    };
    Ok((copied, got))
}

/// Allocates memory and writes it once, so that every page exists separately. Returns `None` if that lasts beyond
/// `until`.
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

/// Returns the pieces of all slots in the order of the transfers, dealt to the threads. No piece is larger than a
/// packet. Each thread stays in its own part of both memories, so that no two threads write to one place.
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

/// Result of a round of all threads.
struct Round {
    /// Rate of the payload.
    gb_per_s: f64,
    /// Share of the wanted CPU time that the threads got.
    got: f64,
}

/// Result of a round of one thread.
struct Part {
    moved_bytes: u64,
    elapsed: Duration,
    cpu: Duration,
}

/// Runs a round: all threads copy at once, each its own pieces over and over.
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
                // Reading the clock takes as long as copying some hundred bytes.
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

/// Returns the number of CPUs that the threads may use together.
fn cpus_for(movers: &[Vec<u32>]) -> Result<usize, Fault> {
    let failed = |source| Fault::system("reading which CPUs this process may use", source);
    if movers.iter().any(Vec::is_empty) {
        return Ok(allowed_cpus().map_err(failed)?.len());
    }
    let cpus: HashSet<_> = movers.iter().flatten().collect();
    Ok(cpus.len())
}

/// Estimates the rate of all threads as if no other program had taken CPU time from them. Copies and transfers that
/// wait for a CPU are equally slow, and memory is not the reason.
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
    use super::super::known::Machine;
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

        // A bounce buffer may be smaller than a transfer.
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
        match rates.of(&used, 0.0).unwrap() {
            Copied::Rate(rate) => {
                assert!(rate.gb_per_s > 0.0);
                assert_eq!((rate.threads, rate.footprint_bytes), (3, 1 << 20));
                assert_eq!(rate.cpus, cpu.to_string());
                let again = rates.of(&used, 0.0).unwrap();
                assert_eq!(again, Copied::Rate(rate), "what is known is not measured again");
            }
            // A machine that busy gives no rate.
            Copied::Starved { got } => assert!(got < GOT_LEAST, "{got}"),
        }
    }

    #[test]
    fn a_rate_of_an_earlier_run_is_taken_unless_more_was_reached_or_all_is_to_be_measured() {
        let folder = tempfile::tempdir().unwrap();
        let kept = || Machine::this(Some("boot")).map(|it| KnownRates::open(folder.path(), it));
        let mut used = usual(64 << 10);
        used.footprint_bytes = [1 << 20; 2];
        kept().unwrap().keep(&used, 5.0, unix_ms());
        let age = |reached, is_fresh| {
            let rates = CopyRates::new(kept(), is_fresh);
            rates.earlier(&used, reached).map(|rate| (rate.gb_per_s, rate.age.is_some()))
        };
        assert_eq!(age(4.9, false), Some((5.0, true)));
        assert_eq!(age(5.1, false), None, "the rate is too low");
        assert_eq!(age(4.9, true), None);
        let Copied::Rate(rate) = CopyRates::new(kept(), false).of(&used, 1.0).unwrap() else {
            panic!("it is known")
        };
        assert_eq!((rate.gb_per_s, rate.threads, rate.footprint_bytes), (5.0, 2, 1 << 20));
    }

    #[test]
    fn a_rate_that_others_disturbed_is_not_kept() {
        let folder = tempfile::tempdir().unwrap();
        let open = || KnownRates::open(folder.path(), Machine::this(Some("boot")).unwrap());
        let mut used = usual(64 << 10);
        used.footprint_bytes = [1 << 20; 2];
        let mut rates = CopyRates::new(Some(open()), false);
        let rate = Copied::Rate(CopyRate::new(&used, 5.0, None));
        rates.keep(&used, &Copied::Starved { got: 0.9 }, 0.9);
        rates.keep(&used, &rate, 0.79);
        assert_eq!(open().get(&used, 0), None);
        rates.keep(&used, &rate, 0.8);
        let (gb_per_s, _) = open().get(&used, unix_ms()).unwrap();
        assert_eq!(gb_per_s, 5.0);
    }

    #[test]
    fn what_takes_too_long_or_gets_next_to_no_cpu_time_is_no_rate() {
        let used = usual(16 << 20);
        let copied = CopyRates::default().within(&used, 0.0, Duration::ZERO).unwrap();
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
        let error = CopyRates::default().of(&used, 0.0).unwrap_err().to_string();
        assert!(error.contains("binding a thread to CPUs"), "{error}");
    }
}
