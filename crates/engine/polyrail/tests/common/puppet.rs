//! A peer in its own process, which can be killed, stopped and started again.
//!
//! The process is the test binary itself, running [`puppet`] alone.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use polyrail::{Engine, Memory, Peer, Region, RemoteRegion, Request, Transfer};
use polyrail_gpu::fake::FakeDevice;
use polyrail_skip::HeldPort;
use rustix::process::{
    DumpableBehavior, Pid, Signal, WaitOptions, kill_process, set_dumpable_behavior, waitpid,
};

use super::{FOUR_RAILS, InTime, LONG, config, filled, pattern};

/// The test that plays the puppet, in every program.
const PUPPET: &str = "common::puppet::puppet";
const SETTINGS: &str = "POLYRAIL_TEST_PUPPET";
/// Environment variable of a child that must not be traceable.
pub(crate) const UNTRACEABLE: &str = "POLYRAIL_TEST_UNTRACEABLE";
/// Marks the puppet's answers among the output of the test harness.
const MARK: &str = "@@ ";
/// Bytes of the puppet's region.
pub(crate) const PUPPET_BYTES: usize = 4 << 20;
/// The pattern in the puppet's region.
pub(crate) const PUPPET_SEED: u64 = 77;

/// The peer, seen from the test.
pub(crate) struct Puppet {
    child: Child,
    input: ChildStdin,
    said: mpsc::Receiver<String>,
    pub(crate) metadata: Vec<u8>,
    pub(crate) region: RemoteRegion,
    /// Description of the region.
    pub(crate) description: Vec<u8>,
    _held: HeldPort,
}

impl Puppet {
    pub(crate) fn start(own: &Engine, settings: &[(&str, &str)]) -> Self {
        Self::start_by(Command::new(std::env::current_exe().unwrap()), own, settings)
    }

    /// Same as `start`, with a command to which the arguments for the test harness are appended.
    pub(crate) fn start_by(mut command: Command, own: &Engine, settings: &[(&str, &str)]) -> Self {
        // The port of a killed engine may be reused by another one, which answers that it is another. This reserves the
        // port.
        let rails = FOUR_RAILS.split(',').map(|rail| rail.parse().unwrap()).collect::<Vec<_>>();
        let held = HeldPort::on(&rails);
        let port = format!("listen_port={}", held.number());
        let others = settings.iter().map(|(name, value)| format!("{name}={value}"));
        let joined: Vec<String> = [port].into_iter().chain(others).collect();
        let mut child = command
            .args([PUPPET, "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .env(SETTINGS, joined.join(";"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, said) = mpsc::channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if let Some((_, words)) = line.split_once(MARK)
                    && sender.send(words.to_owned()).is_err()
                {
                    return;
                }
            }
        });
        let first = said.recv_timeout(LONG).expect("the child starts");
        let (metadata, region) = first.split_once(' ').unwrap();
        let (metadata, description) = (unhex(metadata), unhex(region));
        let region = own.import(&description).unwrap();
        Self { child, input, said, metadata, region, description, _held: held }
    }

    /// Gives an order and waits for the answer.
    pub(crate) fn ask(&mut self, order: &str) -> String {
        writeln!(self.input, "{order}").unwrap();
        self.hear()
    }

    /// Returns a line that the puppet printed unasked, if there is one.
    pub(crate) fn says(&self) -> Option<String> {
        self.said.try_recv().ok()
    }

    pub(crate) fn hear(&self) -> String {
        self.said.recv_timeout(LONG).expect("the child answers")
    }

    /// Makes the puppet add `engine`, and write into `region` again and again.
    pub(crate) fn flood(&mut self, engine: &Engine, region: &Region) {
        self.flood_through(&engine.metadata(), region);
    }

    /// Same as `flood`, with metadata that may lead another way.
    pub(crate) fn flood_through(&mut self, metadata: &[u8], region: &Region) {
        assert_eq!(self.ask(&format!("add {}", hex(metadata))), "added");
        assert_eq!(self.ask(&format!("flood {}", hex(&region.describe()))), "flooding");
    }

    /// Imports memory of a device of the puppet, with the same pattern as its region.
    pub(crate) fn device(&mut self, own: &Engine) -> RemoteRegion {
        own.import(&unhex(&self.ask("device"))).unwrap()
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends a signal. After a stop signal, each of the process's threads has stopped when this returns: otherwise a
    /// busy one might still answer what comes after the signal.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).unwrap();
        if signal == Signal::STOP {
            waitpid(Some(pid), WaitOptions::UNTRACED).unwrap();
        }
    }
}

impl Drop for Puppet {
    fn drop(&mut self) {
        // Also if the process is stopped; it may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The child: plays the peer and never returns.
#[test]
#[ignore = "other tests start it in a process of its own"]
fn puppet() {
    let Ok(settings) = std::env::var(SETTINGS) else { return };
    if std::env::var_os(UNTRACEABLE).is_some() {
        set_dumpable_behavior(DumpableBehavior::NotDumpable).unwrap();
    }
    let settings: Vec<_> = settings.split(';').filter_map(|pair| pair.split_once('=')).collect();
    let engine = super::builder().config(config(&settings)).name("puppet").build().unwrap();
    let region = filled(&engine, PUPPET_BYTES, PUPPET_SEED);
    say(&format!("{} {}", hex(&engine.metadata()), hex(&region.describe())));
    let mut peer: Option<Peer> = None;
    let flooding = Arc::new(AtomicBool::new(true));
    let mut devices = Vec::new();
    let mut threads = Vec::new();
    let mut messages = Messages::new(engine.clone(), region.clone(), say);
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let (order, argument) = line.split_once(' ').unwrap_or((&line, ""));
        match order {
            "add" => {
                peer = Some(engine.add_peer(&unhex(argument)).unwrap());
                say("added");
            }
            "publish" => {
                engine.publish(std::path::Path::new(argument)).unwrap();
                say("published");
            }
            "notify" => {
                // More than fit for a peer that reads nothing.
                let other = engine.add_peer(&unhex(argument)).unwrap();
                for number in 0..200u32 {
                    engine.notify(&other, &number.to_le_bytes()).unwrap().detach();
                }
                say("told");
            }
            "device" => {
                // The device reaches no device of another process.
                let device = FakeDevice::new(9, Duration::from_micros(300), 5);
                let memory = device.memory(&pattern(PUPPET_BYTES, PUPPET_SEED));
                let region = engine.register(memory).unwrap();
                say(&hex(&region.describe()));
                devices.push(region);
            }
            "write" => {
                let (metadata, region_there) = argument.split_once(' ').unwrap();
                let other = engine.add_peer(&unhex(metadata)).unwrap();
                let there = engine.import(&unhex(region_there)).unwrap().all();
                let write = Request::write(&other).segment(region.all(), there);
                let prepared = engine.prepare(write).unwrap();
                prepared.post().unwrap().ended().unwrap();
                say(&prepared.path().to_string());
            }
            "check" => {
                let seed = argument.parse().unwrap();
                let told = engine.wait_notification(LONG).expect("a notification");
                let is_there = super::bytes(&region) == pattern(PUPPET_BYTES, seed);
                say(&format!("{} {is_there}", String::from_utf8(told.data).unwrap()));
            }
            "fill" => {
                region.write_at(0, &pattern(PUPPET_BYTES, argument.parse().unwrap())).unwrap();
                say("filled");
            }
            "holds" => {
                let seed = argument.parse().unwrap();
                say(&(super::bytes(&region) == pattern(PUPPET_BYTES, seed)).to_string());
            }
            "end" => {
                region.end();
                say("ended");
            }
            "room" | "send" | "receive" | "path_of_send" | "cancel" | "peek" | "end_room"
            | "echo" => {
                messages.obey(peer.as_ref(), order, argument);
            }
            "flood" => {
                let (engine, region, peer) = (engine.clone(), region.clone(), peer.clone());
                let target = engine.import(&unhex(argument)).unwrap();
                let flooding = flooding.clone();
                threads.push(std::thread::spawn(move || {
                    flood(&engine, &peer.unwrap(), &region, &target, &flooding);
                }));
                say("flooding");
            }
            other => panic!("unknown order {other}"),
        }
    }
    // The end of the input: the test is over, or was killed.
    flooding.store(false, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    std::process::exit(0);
}

/// The messages that the puppet sends and receives, from and to its room.
pub(crate) struct Messages {
    engine: Engine,
    room: Region,
    posted: Vec<(String, Arc<Transfer>)>,
    say: Arc<dyn Fn(&str) + Send + Sync>,
}

impl Messages {
    /// Makes it answer through `say`.
    pub(crate) fn new(
        engine: Engine,
        room: Region,
        say: impl Fn(&str) + Send + Sync + 'static,
    ) -> Self {
        Self { engine, room, posted: Vec::new(), say: Arc::new(say) }
    }

    /// Obeys `room BYTES`, `send|receive TAG LEN TIMES MS` (the beginning of the room, so many times; 0 ms: no
    /// timeout), `path_of_send LEN`, `cancel TAG`, `peek`, `end_room`, `echo TAGS ROUNDS LEN`.
    pub(crate) fn obey(&mut self, peer: Option<&Peer>, order: &str, argument: &str) {
        let numbers: Vec<u64> = argument.split(' ').filter_map(|word| word.parse().ok()).collect();
        let say = self.say.clone();
        match (order, &numbers[..]) {
            ("room", [bytes]) => {
                let zeros = Memory::from(vec![0; *bytes as usize]);
                self.room = self.engine.register(zeros).unwrap();
                say("has room");
            }
            ("send" | "receive", [tag, len, times, ms]) => {
                let (tag, peer) = (*tag, peer.unwrap());
                let parts = (0..*times).map(|_| self.room.slice(0, *len).unwrap());
                let timeout = |ms: u64| Duration::from_millis(if ms == 0 { 3_600_000 } else { ms });
                let transfer = match order {
                    "send" => self
                        .engine
                        .post(Request::send(peer, tag).locals(parts).timeout(timeout(*ms))),
                    _ => self
                        .engine
                        .post(Request::receive(peer, tag).locals(parts).timeout(timeout(*ms))),
                };
                let transfer = Arc::new(transfer.unwrap());
                self.posted.push((tag.to_string(), transfer.clone()));
                say("posted");
                let order = order.to_owned();
                std::thread::spawn(move || match transfer.join() {
                    Ok(outcome) => say(&format!("{order} {tag}: {} bytes", outcome.bytes)),
                    Err(error) => say(&format!("{order} {tag}: {error}")),
                });
            }
            ("path_of_send", [len]) => {
                let part = self.room.slice(0, *len).unwrap();
                let request = Request::send(peer.unwrap(), 0).local(part);
                say(&self.engine.prepare(request).unwrap().path().to_string());
            }
            ("cancel", _) => {
                let (_, transfer) = self.posted.iter().rfind(|(tag, _)| tag == argument).unwrap();
                transfer.cancel();
            }
            ("peek", _) => {
                let mut first = [0];
                self.room.read_at(0, &mut first).unwrap();
                say(&first[0].to_string());
            }
            ("end_room", _) => {
                self.room.end();
                say("ended");
            }
            ("echo", [tags, rounds, len]) => {
                let peer = peer.unwrap();
                let slice = |tag: u64| self.room.slice(tag * len, *len).unwrap();
                let receive = |tag| self.engine.receive(peer, tag, &slice(tag)).unwrap();
                say("ready");
                for _ in 0..*rounds {
                    let receives: Vec<_> = (0..*tags).map(receive).collect();
                    let back = |(tag, receive): (u64, Transfer)| {
                        assert_eq!(receive.join().unwrap().bytes, *len);
                        self.engine.send(peer, 1000 + tag, &slice(tag)).unwrap()
                    };
                    let sends: Vec<_> = (0..).zip(receives).map(back).collect();
                    for send in &sends {
                        send.join().unwrap();
                    }
                }
                say("echoed");
            }
            _ => panic!("{order} {argument}?"),
        }
    }
}

/// Writes until a write fails, and reports the error.
fn flood(
    engine: &Engine,
    peer: &Peer,
    region: &Region,
    target: &RemoteRegion,
    flooding: &AtomicBool,
) {
    let slice = region.slice(0, target.len()).unwrap();
    while flooding.load(Ordering::Relaxed) {
        let transfer = match engine.write(peer, &slice, &target.all()) {
            Ok(transfer) => transfer,
            Err(error) => return say(&format!("flood ended: {error}")),
        };
        if let Err(error) = transfer.ended() {
            return say(&format!("flood ended: {error}"));
        }
    }
}

fn say(words: &str) {
    println!("{MARK}{words}");
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(digit).collect()
}
