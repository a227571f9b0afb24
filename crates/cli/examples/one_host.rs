//! How fast host memory moves between two processes of this host, and between two engines of one: by
//! a single copy and over loopback TCP, in turn, beside threads that only copy. And messages between two
//! processes whose callers move the data, through shared memory and over loopback TCP.
//!
//! ```sh
//! cargo run --release -p polyrail-cli --example one_host -- [ROUNDS] [all|messages|callers]
//! ```

use std::collections::VecDeque;
use std::error::Error;
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use polyrail::{Config, Engine, Memory, Peer, PreparedTransfer, Region, RemoteRegion, Request};
use polyrail_report::median_of_sorted;

const BYTES: u64 = 256 << 20;
/// How long a figure of one round is measured.
const SAMPLE: Duration = Duration::from_millis(250);
const SHAPES: [(u64, usize); 9] = [
    (BYTES, 1),
    (1 << 20, 1),
    (1 << 20, 16),
    (64 << 10, 1),
    (64 << 10, 16),
    (4096, 1),
    (4096, 16),
    (8, 1),
    (8, 16),
];

/// Of messages between the processes. Those of 8 bytes are never copied, and show what all others cost beside
/// their bytes.
const MESSAGES: [(u64, usize); 8] = [
    (8, 1),
    (8, 16),
    (128 << 10, 1),
    (128 << 10, 16),
    (256 << 10, 1),
    (256 << 10, 16),
    (1 << 20, 1),
    (1 << 20, 16),
];
/// Of messages that callers move: none of them is copied by the kernel alone.
const CALLERS_MESSAGES: [(u64, usize); 5] =
    [(8, 1), (8, 16), (4096, 16), (64 << 10, 1), (64 << 10, 16)];
/// The engines of the other process, in this order, by what differs.
const ENGINES: [&[(&str, &str)]; 4] = [
    &[("rails", RAILS), ("path", "auto")],
    &[("rails", RAILS), ("path", "device")],
    &[("rails", "127.0.0.1"), ("preset", "latency"), ("path", "auto")],
    &[("rails", "127.0.0.1"), ("preset", "latency"), ("path", "tcp")],
];
const RAILS: &str = "127.0.0.1,127.0.0.2,127.0.0.3,127.0.0.4";
const TAG: u64 = 1;
/// Bytes of a sample's last messages, and of no others.
const LAST: u64 = 1;

type Failed = Box<dyn Error>;
/// Metadata of an engine and the description of its memory.
type Description = (Vec<u8>, Vec<u8>);

fn main() -> Result<(), Failed> {
    match std::env::args().nth(1).as_deref() {
        Some("peer") => peer(),
        rounds => {
            let rounds = rounds.map_or(Ok(5), str::parse)?;
            match std::env::args().nth(2).as_deref() {
                Some("callers") => measure_callers(rounds),
                what => measure(rounds, what == Some("messages")),
            }
        }
    }
}

fn engine(settings: &[(&str, &str)]) -> Result<Engine, Failed> {
    let mut config = Config::builder();
    for (name, value) in settings {
        config = config.set(name, value)?;
    }
    Ok(Engine::builder().config(config.build()?).build()?)
}

fn memory(byte: u8) -> Result<Memory, Failed> {
    let memory = Memory::anonymous(BYTES)?;
    for at in (0..BYTES).step_by(1 << 20) {
        memory.write_at(at, &vec![byte; 1 << 20])?;
    }
    Ok(memory)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Result<Vec<u8>, Failed> {
    let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16);
    Ok((0..text.len()).step_by(2).map(byte).collect::<Result<_, _>>()?)
}

/// The other process: it has memory, and receives messages when it is told to.
fn peer() -> Result<(), Failed> {
    let memory = memory(2)?;
    let mut kept = Vec::new();
    for settings in ENGINES {
        let engine = engine(settings)?;
        let region = engine.register(memory.clone())?;
        println!("{} {}", hex(&engine.metadata()), hex(&region.describe()));
        kept.push((engine, region));
    }
    for line in std::io::stdin().lines() {
        let line = line?;
        let mut words = line.split(' ');
        let mut word = || words.next().ok_or("an order has a way, metadata, bytes and depth");
        let (engine, region) = &kept[word()?.parse::<usize>()?];
        let sender = engine.add_peer(&unhex(word()?)?)?;
        receive(engine, &sender, region, word()?.parse()?, word()?.parse()?)?;
    }
    Ok(())
}

/// The transfers of a sample: all of the memory in turn, as real data would not lie in the cache.
fn prepare_all(
    bytes: u64,
    prepare: impl Fn(u64) -> Result<PreparedTransfer, Failed>,
) -> Result<Vec<PreparedTransfer>, Failed> {
    let places = (BYTES / bytes).min(256);
    (0..places).map(|place| prepare(place * (BYTES / places))).collect()
}

/// Receives messages, twice as many posted as the sender has outstanding, until the last ones: each
/// receive gets one. If some were cancelled, a message of the next sample might meet one of them.
fn receive(
    engine: &Engine,
    sender: &Peer,
    region: &Region,
    bytes: u64,
    depth: usize,
) -> Result<(), Failed> {
    let prepared = prepare_all(bytes, |at| {
        Ok(engine.prepare(Request::receive(sender, TAG).local(region.slice(at, bytes)?))?)
    })?;
    let mut posted = VecDeque::new();
    for next in (0..).map(|count: usize| &prepared[count % prepared.len()]) {
        posted.push_back(next.post()?);
        if posted.len() == 2 * depth {
            println!("ready");
        }
        if posted.len() > 2 * depth
            && let Some(first) = posted.pop_front()
            && first.join()?.bytes == LAST
        {
            break;
        }
    }
    for receive in posted {
        receive.join()?;
    }
    println!("done");
    Ok(())
}

/// One way to the other memory.
struct Way {
    name: &'static str,
    engine: Engine,
    peer: Peer,
    source: Region,
    target: RemoteRegion,
}

impl Way {
    fn new(
        name: &'static str,
        settings: &[(&str, &str)],
        memory: &Memory,
        (metadata, description): (&[u8], &[u8]),
    ) -> Result<Self, Failed> {
        let engine = engine(settings)?;
        let peer = engine.add_peer(metadata)?;
        let (source, target) = (engine.register(memory.clone())?, engine.import(description)?);
        Ok(Self { name, engine, peer, source, target })
    }

    /// Seconds for a transfer, with so many outstanding.
    fn sample(&self, bytes: u64, depth: usize, reads: bool) -> Result<f64, Failed> {
        let prepared = prepare_all(bytes, |at| {
            let (here, there) = (self.source.slice(at, bytes)?, self.target.slice(at, bytes)?);
            let prepared = match reads {
                true => self.engine.prepare(Request::read(&self.peer).segment(here, there)),
                false => self.engine.prepare(Request::write(&self.peer).segment(here, there)),
            };
            Ok(prepared?)
        })?;
        prepared[0].post()?.join()?;
        time(&prepared, depth, SAMPLE)
    }

    /// The same for messages that the other process receives.
    fn messages(
        &self,
        other: &mut Other,
        number: usize,
        shape: (u64, usize),
    ) -> Result<f64, Failed> {
        let (bytes, depth) = shape;
        other.tell(&format!("{number} {} {bytes} {depth}", hex(&self.engine.metadata())))?;
        other.hear("ready")?;
        let message = |at, bytes| -> Result<_, Failed> {
            let part = self.source.slice(at, bytes)?;
            Ok(self.engine.prepare(Request::send(&self.peer, TAG).local(part))?)
        };
        let prepared = prepare_all(bytes, |at| message(at, bytes))?;
        // Where the memory of the receives is, is known after the first ones.
        time(&prepared, depth, SAMPLE / 5)?;
        let taken = time(&prepared, depth, SAMPLE)?;
        let last = message(0, LAST)?;
        for _ in 0..=2 * depth {
            last.post()?.join()?;
        }
        other.hear("done")?;
        Ok(taken)
    }
}

/// Seconds for a transfer, with so many outstanding.
fn time(prepared: &[PreparedTransfer], depth: usize, sample: Duration) -> Result<f64, Failed> {
    let (began, mut count) = (Instant::now(), 0_usize);
    let mut under_way = VecDeque::new();
    while began.elapsed() < sample || count == 0 {
        while under_way.len() < depth {
            under_way.push_back(prepared[count % prepared.len()].post()?);
            count += 1;
        }
        if let Some(first) = under_way.pop_front() {
            first.join()?;
        }
    }
    for transfer in under_way {
        transfer.join()?;
    }
    Ok(began.elapsed().as_secs_f64() / count as f64)
}

/// The other process, as this one sees it.
struct Other {
    child: Child,
    said: Lines<BufReader<ChildStdout>>,
}

impl Other {
    fn start() -> Result<Self, Failed> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("peer")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let said = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
        Ok(Self { child, said })
    }

    fn line(&mut self) -> Result<String, Failed> {
        Ok(self.said.next().ok_or("the other process has ended")??)
    }

    fn description(&mut self) -> Result<Description, Failed> {
        let line = self.line()?;
        let (metadata, region) = line.split_once(' ').ok_or("the other process says nothing")?;
        Ok((unhex(metadata)?, unhex(region)?))
    }

    /// Those of all its engines.
    fn descriptions(&mut self) -> Result<[Description; ENGINES.len()], Failed> {
        let mut all: [Description; ENGINES.len()] = Default::default();
        for one in &mut all {
            *one = self.description()?;
        }
        Ok(all)
    }

    fn end(mut self) -> Result<(), Failed> {
        drop(self.child.stdin.take());
        self.child.wait()?;
        Ok(())
    }

    fn tell(&mut self, order: &str) -> Result<(), Failed> {
        Ok(writeln!(self.child.stdin.as_mut().ok_or("no input")?, "{order}")?)
    }

    fn hear(&mut self, expected: &str) -> Result<(), Failed> {
        let line = self.line()?;
        if line == expected { Ok(()) } else { Err(format!("not {expected}, but {line}").into()) }
    }
}

/// Seconds in which so many threads copy the memory once.
fn copies(from: &Memory, to: &Memory, threads: u64) -> f64 {
    let part = BYTES / threads;
    let began = Instant::now();
    let mut count = 0;
    while began.elapsed() < SAMPLE || count == 0 {
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let at = thread * part;
                // Both memories have that many bytes.
                scope.spawn(move || from.copy_to(at, (to, at), part).expect("it is inside"));
            }
        });
        count += 1;
    }
    began.elapsed().as_secs_f64() / f64::from(count)
}

fn measure(rounds: usize, only_messages: bool) -> Result<(), Failed> {
    let mut child = Other::start()?;
    let [auto, off, ..] = &child.descriptions()?;
    let (source, other) = (memory(1)?, memory(3)?);
    let here = engine(ENGINES[0])?;
    let target = here.register(other.clone())?;
    let (metadata, region) = (here.metadata(), target.describe());
    let ways = [
        Way::new("single copy, 2 processes", ENGINES[0], &source, (&auto.0, &auto.1))?,
        Way::new("single copy, 1 process", ENGINES[0], &source, (&metadata, &region))?,
        Way::new("tcp, 2 processes", ENGINES[1], &source, (&off.0, &off.1))?,
    ];
    let shapes = if only_messages { &[][..] } else { &SHAPES };
    for threads in [1, 2] {
        let mut times: Vec<f64> = (0..rounds).map(|_| copies(&source, &other, threads)).collect();
        println!("memcpy, {threads} thread(s): {}", show(&mut times, BYTES));
    }
    for (bytes, depth) in shapes.iter().copied() {
        for reads in [false, true] {
            let mut times = vec![Vec::new(); ways.len() + 2];
            for _ in 0..rounds {
                for (way, times) in ways.iter().zip(&mut times) {
                    times.push(way.sample(bytes, depth, reads)?);
                }
                if bytes == BYTES {
                    times[ways.len()].push(copies(&source, &other, 1));
                    times[ways.len() + 1].push(copies(&source, &other, 2));
                }
            }
            let kind = if reads { "read" } else { "write" };
            let names =
                ways.iter().map(|way| way.name).chain(["memcpy, 1 thread", "memcpy, 2 threads"]);
            for (name, times) in names.zip(&mut times).filter(|(_, times)| !times.is_empty()) {
                let text = show(times, bytes);
                println!("{kind} {bytes} B, depth {depth}, {name}: {text}");
            }
            std::io::stdout().flush()?;
        }
    }
    measure_messages(&mut child, [(0, &ways[0]), (1, &ways[2])], &MESSAGES, rounds)?;
    child.end()
}

/// Messages of two engines whose callers move the data.
fn measure_callers(rounds: usize) -> Result<(), Failed> {
    let mut child = Other::start()?;
    let [.., shared, tcp] = &child.descriptions()?;
    let source = memory(1)?;
    let shared = Way::new("callers, shared memory", ENGINES[2], &source, (&shared.0, &shared.1))?;
    let tcp = Way::new("callers, tcp", ENGINES[3], &source, (&tcp.0, &tcp.1))?;
    measure_messages(&mut child, [(2, &shared), (3, &tcp)], &CALLERS_MESSAGES, rounds)?;
    child.end()
}

/// In turn by two engines, with the numbers of those that receive them.
fn measure_messages(
    other: &mut Other,
    ways: [(usize, &Way); 2],
    shapes: &[(u64, usize)],
    rounds: usize,
) -> Result<(), Failed> {
    for shape in shapes.iter().copied() {
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..rounds {
            for ((number, way), times) in ways.into_iter().zip(&mut times) {
                times.push(way.messages(other, number, shape)?);
            }
        }
        for ((_, way), times) in ways.into_iter().zip(&mut times) {
            let ((bytes, depth), text) = (shape, show(times, shape.0));
            println!("message {bytes} B, depth {depth}, {}: {text}", way.name);
        }
    }
    Ok(())
}

/// Median, slowest and fastest.
fn show(seconds: &mut [f64], bytes: u64) -> String {
    seconds.sort_by(f64::total_cmp);
    let rate = |seconds: f64| bytes as f64 / seconds / 1e9;
    let median = median_of_sorted(seconds).unwrap_or(f64::NAN);
    let last = seconds[seconds.len() - 1];
    format!(
        "{:.2} us, {:.2} GB/s ({:.2} to {:.2})",
        median * 1e6,
        rate(median),
        rate(last),
        rate(seconds[0])
    )
}
