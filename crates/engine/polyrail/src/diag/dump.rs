//! The state of an engine as text: each pending operation, what it waits for, and since when.

use std::fmt::Write;
use std::io::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use polyrail_config::{Config, LogFormat, Origin, expand_file_name, harmless};
use polyrail_proto::reason::seconds;
use polyrail_proto::tally::Counter;
use polyrail_proto::{FlowIndex, Source, Time};
use polyrail_sys::files::regular_file;
use polyrail_sys::interfaces::host_name;
use polyrail_sys::threads::monotonic_ns;
use polyrail_sys::without_write_signals;

use crate::engine::peer::{OpRef, PeerShared};
use crate::engine::state::EngineShared;

/// The signal that requests a dump. Its handler only sets a flag.
pub(crate) struct DumpSignal {
    asked: Option<Arc<AtomicBool>>,
}

impl DumpSignal {
    pub(crate) fn new(signal: u32) -> io::Result<Self> {
        if signal == 0 {
            return Ok(Self { asked: None });
        }
        let asked = Arc::new(AtomicBool::new(false));
        // The configuration bounds it to 64 and refuses signals that can't be caught.
        signal_hook::flag::register(signal as i32, asked.clone())?;
        Ok(Self { asked: Some(asked) })
    }

    pub(crate) fn is_on(&self) -> bool {
        self.asked.is_some()
    }

    /// Writes a dump if the signal came.
    pub(crate) fn run(&self, engine: &Arc<EngineShared>) {
        let Some(asked) = &self.asked else { return };
        if !asked.swap(false, Ordering::AcqRel) {
            return;
        }
        let text = text(engine);
        let write = || match log_of_lines(&engine.config) {
            None => io::stderr().write_all(text.as_bytes()),
            Some(file) => {
                let path = expand_file_name(file, &host_name(), std::process::id());
                let file = regular_file::append_to(path.as_ref());
                file.and_then(|mut file| file.write_all(text.as_bytes()))
            }
        };
        let written = without_write_signals(write);
        if let Err(error) = written {
            tracing::error!(target: "polyrail::engine", %error, "can't write the state dump");
            let _ = without_write_signals(|| io::stderr().write_all(text.as_bytes()));
        }
    }
}

/// The log file, if a dump may go there: the log is text, and no other program writes the file. (NCCL also writes the
/// file of `NCCL_DEBUG_FILE`.)
fn log_of_lines(config: &Config) -> Option<&str> {
    let is_foreign = config.origin("log_file").is_some_and(Origin::is_foreign);
    let is_text = config.log_format == LogFormat::Text && !is_foreign;
    (is_text && !config.log_file.is_empty()).then_some(config.log_file.as_str())
}

/// The dump.
pub(crate) fn text(engine: &Arc<EngineShared>) -> String {
    let mut out = String::new();
    // Writing to a String can't fail.
    let _ = write_engine(&mut out, engine);
    // Peers, plugins and the system chose some of its words.
    harmless(&out, &['\n'])
}

fn write_engine(out: &mut String, engine: &Arc<EngineShared>) -> std::fmt::Result {
    let (card, pool) = (&engine.card, &engine.pool);
    writeln!(out, "polyrail engine {} ({})", card.name, card.instance)?;
    let waiting = engine.arrived.inbox.queue.len();
    let regions = engine.registry.count();
    writeln!(
        out,
        "  operations {} of {}, regions {regions}, notifications waiting {waiting}, rescues {}",
        pool.used(),
        pool.limit(),
        engine.pace.rescues.get()
    )?;
    if let Some(staging) = engine.budgets.staging.text() {
        writeln!(out, "  pinned memory of flows: {staging}")?;
    }
    for rail in &card.rails {
        let speed = if rail.speed_mbps == 0 {
            String::new()
        } else {
            format!(", {} Mbit/s", rail.speed_mbps)
        };
        writeln!(out, "  rail {} listens on {}{speed}", rail.name, rail.address)?;
    }
    for proxy in &engine.proxies.all {
        let s = proxy.stats();
        let cpu = s.last_cpu.map_or("-".to_owned(), |cpu| cpu.to_string());
        writeln!(
            out,
            "  proxy {}: cpu {cpu}, {:.2} s of CPU, {} passes ({} busy), {} sleeps",
            s.name, s.cpu_seconds, s.passes, s.busy_passes, s.sleeps
        )?;
    }
    if let Some(host) = &engine.host {
        writeln!(out, "  plugin {}, table of version {}", host.name(), host.version())?;
        for thread in host.threads() {
            let verdict = if thread.is_as_asked { "" } else { ", which no binding names" };
            writeln!(out, "    thread {} on CPUs {}{verdict}", thread.id, thread.cpus)?;
        }
    }
    for peer in engine.peers() {
        write_peer(out, engine, &peer)?;
    }
    Ok(())
}

fn write_peer(out: &mut String, engine: &EngineShared, peer: &PeerShared) -> std::fmt::Result {
    let now = Time(monotonic_ns());
    let place = if peer.says_same_host { "this host" } else { "remote" };
    writeln!(
        out,
        "  peer {} ({}, {place}): {} of {} flows up, {} arriving, {} posted and not fetched",
        peer.name(),
        peer.instance(),
        peer.flows_up(),
        peer.links.flows.len(),
        peer.links.rx_flows_up.load(Ordering::Relaxed),
        peer.posted.len()
    )?;
    let names = peer.names.lock().join(", ");
    if !names.is_empty() {
        writeln!(out, "    by its certificate it is {names}")?;
    }
    let megabytes = |counter: &Counter| counter.get() / 1_000_000;
    let copied = megabytes(&peer.account.tally.peer_copy_bytes);
    if copied > 0 {
        writeln!(out, "    devices were given {copied} MB to copy from end to end")?;
    }
    for (near, far, plan) in peer.beside.path_plans.known().filter(|_| peer.says_same_host) {
        writeln!(out, "    between {near} here and {far}: {plan}")?;
    }
    let sharing = peer.beside.sharing.lock().text(now);
    if let Some(sharing) = sharing {
        let left = megabytes(&peer.account.tally.shared_bytes);
        writeln!(out, "    shared memory: {sharing}; {left} MB were left there for the peer")?;
    }
    if engine.settings.caller_driven
        && peer.says_same_host
        && let Some(Err(why)) = peer.beside.streams.last()
    {
        writeln!(out, "    no shared memory for connections: {why}")?;
    }
    let tx = peer.tx();
    if tx.sender.is_busy() {
        let silence = seconds(tx.sender.silence(now));
        writeln!(out, "    sending; last heard of {silence} ago")?;
    }
    for (index, slot) in peer.links.flows.iter().enumerate() {
        let flow = FlowIndex(index as u32);
        let rail = &engine.card.rails[peer.layout.pair_of(flow).0].name;
        let in_flight = tx.sender.in_flight(flow);
        let up = slot.up.load(Ordering::Relaxed);
        let way = match slot.wire.lock().as_ref().is_some_and(|wire| wire.stream().is_some()) {
            true => ", through shared memory",
            false => "",
        };
        let reason = match (up, in_flight) {
            (false, _) => "down".to_owned(),
            (true, 0) if !tx.sender.has_work() => "idle".to_owned(),
            (true, 0) => "up".to_owned(),
            (true, n) => {
                let since = seconds(now.since(tx.sender.flow_progress(flow)));
                let full = if tx.sender.has_room(flow) { "" } else { ", window full" };
                format!("{n} chunks in flight{full}, last acknowledged {since} ago")
            }
        };
        writeln!(
            out,
            "    {flow} channel {} rail {rail}{way}: {reason}; {} MB in {} chunks, {} resent, lost {} times",
            peer.layout.channel_of(flow),
            slot.stats.tx_bytes.get() / 1_000_000,
            slot.stats.tx_chunks.get(),
            slot.stats.resent_chunks.get(),
            slot.stats.down.get()
        )?;
    }
    let of = |OpRef(op): &OpRef| {
        let id = op.transfer().map_or(String::new(), |id| format!(" {id}"));
        (format!("{}{id}", op.prepared.kind.name()), format!("{} ago", seconds(op.age())))
    };
    for (purpose, transfer) in tx.transfers() {
        let (what, age) = purpose.describe(of);
        let bytes = transfer.source.plan().bytes();
        writeln!(out, "    {what}: {bytes} bytes, posted {age}")?;
    }
    for (tag, OpRef(op)) in tx.waiting_sends() {
        let age = seconds(op.age());
        let bytes = op.prepared.plan.bytes();
        writeln!(out, "    send tag {tag}: {bytes} bytes, waits {age} for the peer's receive")?;
    }
    let copying = tx.copied_messages();
    let receives = tx.waiting_receives();
    drop(tx);
    if copying > 0 {
        writeln!(out, "    {copying} messages are copied into receives of the peer")?;
    }
    if receives > 0 {
        writeln!(out, "    the peer has {receives} receives posted that wait for our sends")?;
    }
    if let Some(taken) = peer.account.quotas.of_messages.text() {
        writeln!(out, "    the peer takes up here: {taken}")?;
    }
    if let Some(breach) = &*peer.life.breach.lock() {
        writeln!(out, "    the peer broke the rules: {breach}")?;
    }
    let rx = peer.rx();
    let refused = rx.receiver.quota_refusals() + peer.account.quotas.flows_refused.get();
    if refused > 0 {
        writeln!(out, "    the peer was refused {refused} times because a quota was used up")?;
    }
    for (number, receive) in rx.receives() {
        let age = seconds(receive.op.0.age());
        writeln!(out, "    receive {number}: room for {}, posted {age} ago", receive.capacity)?;
    }
    for (number, OpRef(op)) in rx.reads() {
        let age = seconds(op.age());
        writeln!(out, "    read {number}: data asked for {age} ago")?;
    }
    if rx.receiver.active_count() > 0 {
        let count = rx.receiver.active_count();
        writeln!(out, "    {count} transfers of the peer are landing")?;
    }
    drop(rx);
    if let Some(problem) = peer.last_problem() {
        writeln!(out, "    last problem: {problem}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dump_goes_to_no_log_of_json_and_to_none_that_nccl_writes() {
        let file = Config::builder().set("log_file", "/tmp/log").unwrap();
        assert_eq!(log_of_lines(&file.clone().build().unwrap()), Some("/tmp/log"));
        let json = file.set("log_format", "json").unwrap().build().unwrap();
        let of_nccl = [("NCCL_DEBUG_FILE".to_owned(), "/tmp/log".to_owned())];
        let of_nccl = Config::builder().env_from(of_nccl).build().unwrap();
        assert_eq!(of_nccl.log_file, "/tmp/log");
        for config in [Config::default(), json, of_nccl] {
            assert_eq!(log_of_lines(&config), None);
        }
    }
}
