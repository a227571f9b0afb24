//! The measuring end of a run, from the first connection to the report.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::thread;
use std::time::{Duration, Instant};

use polyrail::{Config, Engine, Peer};
use polyrail_lab::Rate;
use polyrail_report::{BenchReport, BenchResult, Lab, PeerView, Placement, SCHEMA_VERSION, exit};
use polyrail_sample::Attached;
use polyrail_sys::interfaces::CongestionControls;

use super::about::{settings, threads};
use super::line::{line, line_there};
use super::measure::Bench;
use super::protection::Connected;
use crate::cmd::bench::faults;
use crate::cmd::bench::judge::{CopyRates, KnownRates, Machine, fit};
use crate::cmd::bench::memory::Bank;
use crate::cmd::bench::options::{Against, Args, Placed, Schedule, Server, Verify};
use crate::cmd::bench::output::{
    Output, TCP, explanation, kept_state_folder, remarks, sample_file,
};
use crate::cmd::bench::rivals::Other;
use crate::cmd::bench::talk::{About, Answer, Ask, CONTROL_VERSION, Link, Silent, unexpected};
use crate::cmd::bench::trial::{Watch, attach, rails_down};
use crate::fault::{Cause, Fault};
use crate::interrupt::{AtOnce, Interrupt};
use crate::progress::Progress;
use crate::reports;
use crate::stdout::put;

/// Measures against the server, reports, and returns the exit code.
pub(crate) fn run(
    args: &Args,
    engine: Engine,
    bank: Bank,
    server: &Server,
    placed: &Placed,
) -> Result<u8, Fault> {
    let interrupt = Interrupt::install(AtOnce::Second)?;
    if args.inside_lab.is_some() {
        interrupt.raise_when_stdin_ends()?;
    }
    let schedule = args.schedule();
    let output = Output::open(args.report(), args.csv.as_deref())?;
    let rates = args.lab.as_ref().map(|lab| lab.0.as_slice());
    let mut report = blank(engine.config(), rates);
    report.memory = Some(bank.place());
    report.placement =
        Some(Placement { by: placed.by, why: placed.why.clone(), threads: Vec::new() });
    let started = Instant::now();
    let sampled = args.sample.as_ref().map(|path| sample_file(path.as_deref())).transpose()?;
    let watch = sampled.is_some().then(Watch::open).transpose()?;
    let attached = match sampled {
        Some((path, file)) => {
            report.samples_file = Some(path.display().to_string());
            Some(attach(file, &path)?)
        }
        None => None,
    };
    let mut end = measure(
        &schedule,
        engine,
        &bank,
        server,
        rates,
        &interrupt,
        watch.as_ref(),
        &output,
        &mut report,
    );
    // The measurements are valid even if sampling failed.
    match attached.map(Attached::stop).transpose() {
        Ok(Some(cost)) => report.head.notes.push(format!(
            "sampling took {:.2} % of a CPU, which is in the CPU time of this process",
            cost.cpu_percent
        )),
        Ok(None) => {}
        Err(error) => end = end.and(Err(error.into())),
    }
    report.head.elapsed_s = started.elapsed().as_secs_f64();
    let largest = report.results.iter().max_by_key(|result| result.size_bytes);
    report.limit = largest.map(|result| result.limit.clone());
    report.interrupted = matches!(&end, Err(fault) if fault.is_interrupted());
    report.head.notes.extend(remarks(&report));
    report.head.error = end.as_ref().err().map(ToString::to_string);
    let shown = match schedule.dry_run {
        true => output.save(&report),
        false => output.show(&report, args.explain_path.is_some()),
    };
    end.and(shown).map(|()| exit::OK)
}

#[expect(clippy::too_many_arguments, reason = "each is used once, by one caller")]
/// Measures one size after another. The report has all sizes up to the first failure.
fn measure(
    schedule: &Schedule,
    engine: Engine,
    bank: &Bank,
    server: &Server,
    rates: Option<&[Rate]>,
    interrupt: &Interrupt,
    watch: Option<&Watch>,
    output: &Output,
    report: &mut BenchReport,
) -> Result<(), Fault> {
    let mut ending = EndTogether(vec![engine.clone()]);
    let progress = Progress::new();
    progress.say(format!("connecting to {}", server.addresses[0]));
    interrupt.tell_beside(progress.beside());
    let link = Link::new(&engine, server.connect(&engine, interrupt)?, interrupt.clone());
    let connected = Connected {
        config: engine.config(),
        by_invitation: server.invitation.is_some(),
        by_certificate: !link.peer.proven_names().is_empty(),
    };
    let about = hello(&link)?;
    let protection = connected.protection(&about.config);
    report.protection = Some(protection);
    let boot_id = report.host.boot_id.as_ref();
    let same_host = boot_id.is_some() && boot_id == about.host.boot_id.as_ref();
    let (tool, host, config, there) = (about.tool, about.host, about.config, about.memory);
    let name = link.peer.name().to_owned();
    let hosts = [&report.host, &host].map(|host| host.hostname.clone());
    let memory = Some(there.clone());
    report.peer = Some(PeerView { name, tool, host, same_host, config, memory });
    let on_host = [bank.is_host(), same_host && there.pci.is_none()];
    check_memory(schedule, engine.rails().len(), on_host)?;

    let devices = match &there.pci {
        Some(pci)
            if same_host && (wants(schedule, Against::Cuda) || wants(schedule, Against::Nccl)) =>
        {
            Some([bank.kind(), Bank::find(pci)?])
        }
        _ => None,
    };
    let opened = Other::open_all(schedule, &link)?;
    ending.0.extend(opened.iter().map(|other| other.engine().clone()));
    let connect = |other| Other::connect(other, interrupt);
    let others: Vec<_> = opened.iter().map(connect).collect::<Result<_, Fault>>()?;
    report.head.notes.extend(notes(schedule, same_host, !bank.is_host() || there.pci.is_some()));
    let machine = Machine::this(report.host.boot_id.as_deref());
    let kept = kept_state_folder().zip(machine);
    let kept = kept.map(|(folder, machine)| KnownRates::open(&folder, machine));
    // One instance for all passes: each write replaces the whole file.
    let copies = RefCell::new(CopyRates::new(kept, schedule.why));
    let line = line(&engine, rates);
    // Both ends of a lab's links are shaped alike.
    let peer_line = about.line.filter(|_| rates.is_none()).and_then(line_there);
    let passes = schedule.passes();
    let bench = |schedule| Bench {
        schedule,
        link: &link,
        bank,
        devices,
        others: &others,
        interrupt,
        progress: &progress,
        watch,
        seed: RandomState::new().hash_one(0),
        began_unix_ms: report.head.started_unix_ms,
        copies: &copies,
        messages: RefCell::default(),
        costs: RefCell::default(),
        line: line.clone(),
        peer_line: peer_line.clone(),
        payload: [protection.payload_sent, protection.payload_received],
        same_host,
        hosts: hosts.clone(),
        peer_on_host: there.pci.is_none(),
    };
    let benches: Vec<Bench<'_>> = passes.iter().map(bench).collect();
    let steps =
        || benches.iter().flat_map(|bench| schedule.sizes.iter().map(move |&size| (bench, size)));
    progress.plan(steps().map(|(bench, size)| bench.work(size)).sum());
    let mut end = interrupt.check();
    if schedule.dry_run {
        progress.clear();
        let explain =
            |(bench, size): (&Bench<'_>, u64)| Ok(bench.explain(size)?.map(|path| (size, path)));
        let paths: Result<Vec<_>, Fault> = steps().map(explain).collect();
        let paths: Vec<_> = paths?.into_iter().flatten().collect();
        let _ = put(&explanation(paths.iter().map(|(size, path)| (*size, path))));
        others.iter().map(|(_, link)| link).chain([&link]).for_each(say_good_bye);
        return end;
    }
    await_flows(&link.peer, interrupt)?;
    for (bench, size) in steps() {
        let (result, ended) = bench.measure(size, &mut report.head.notes);
        report.results.extend(result);
        output.save(report)?;
        end = ended;
        if end.is_err() {
            break;
        }
    }
    if let Some(asked) = schedule.fit.as_ref().filter(|_| end.is_ok()) {
        let costs: Vec<_> = benches.iter().flat_map(|bench| bench.costs.take()).collect();
        report.fit = fit(asked, &costs, same_host);
        output.save(report)?;
    }
    // `--why` may test other suspects than the planned ones.
    debug_assert!(end.is_err() || schedule.why || progress.is_whole(), "the plan is not the work");
    // Congestion control slows neither shared memory nor a single copy.
    let by_flows = |result: &BenchResult| result.path.as_ref().is_none_or(|path| path.taken == TCP);
    if same_host && engine.config().congestion == "auto" && report.results.iter().any(by_flows) {
        report.head.notes.extend(note_of_congestion(&engine));
    }
    if let Some(placement) = &mut report.placement {
        placement.threads = threads(&engine, false);
        // After a failure the other end may not answer.
        if let Ok(Answer::Threads { threads }) = link.ask(&Ask::Threads) {
            placement.threads.extend(threads);
        }
    }
    progress.clear();
    others.iter().map(|(_, link)| link).chain([&link]).for_each(say_good_bye);
    end
}

/// Engines that close at the same time when this is dropped: each close allows time for the peer to learn of it.
struct EndTogether(Vec<Engine>);

impl Drop for EndTogether {
    fn drop(&mut self) {
        thread::scope(|scope| {
            for engine in &self.0 {
                let thread = thread::Builder::new().spawn_scoped(scope, || engine.close());
                if thread.is_err() {
                    engine.close();
                }
            }
        });
    }
}

fn blank(config: &Config, rates: Option<&[Rate]>) -> BenchReport {
    let lab = rates.map(|rates| Lab {
        rails_bits_per_s: rates.iter().map(|rate| rate.bits_per_second()).collect(),
    });
    BenchReport {
        head: reports::begin(SCHEMA_VERSION),
        host: crate::host::describe(),
        peer: None,
        config: BTreeMap::from_iter(settings(config)),
        lab,
        memory: None,
        placement: None,
        protection: None,
        results: Vec::new(),
        limit: None,
        fit: None,
        samples_file: None,
        interrupted: false,
    }
}

fn hello(link: &Link<'_>) -> Result<About, Fault> {
    let ask = Ask::Hello { control_version: CONTROL_VERSION };
    let begin = Instant::now();
    loop {
        match link.ask(&ask) {
            Ok(Answer::Hello(about)) => return Ok(*about),
            Ok(other) => return Err(unexpected(&ask, &other)),
            // A killed client counts as served until the server's engine notices its death.
            Err(fault) if fault.cause == Cause::Busy && begin.elapsed() < NOTICED_WITHIN => {
                thread::sleep(ASK_AGAIN);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Waits until all flows are up, so that no rail joins during the first measurement. A rail that is down delays the run
/// by [`FLOWS_WITHIN`] at most.
fn await_flows(peer: &Peer, interrupt: &Interrupt) -> Result<(), Fault> {
    let begin = Instant::now();
    while !peer.flows().are_all_up() && peer.lost().is_none() && begin.elapsed() < FLOWS_WITHIN {
        interrupt.check()?;
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Time in which flows come up if they come up at all: two ways of connecting, and a lost packet.
const FLOWS_WITHIN: Duration = Duration::from_secs(1);

/// Ends the service, and reports to the server which rails of this end carry nothing.
pub(super) fn say_good_bye(link: &Link<'_>) {
    let now = || match link.is_interrupted() {
        // The aborted transfers took connections down with them.
        true => Silent::default(),
        false => {
            Silent { down: rails_down(link.engine, &link.engine.stats()), ..Silent::default() }
        }
    };
    link.say_good_bye(link.silent().unwrap_or_else(now));
}

/// Time within which a server notices that its client is dead.
const NOTICED_WITHIN: Duration = Duration::from_secs(2);
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// Refuses a run that needs more memory than this machine has available. Each end that is `on_host` takes its memory
/// from this machine.
fn check_memory(schedule: &Schedule, rails: usize, on_host: [bool; 2]) -> Result<(), Fault> {
    let ends = on_host.into_iter().filter(|is| *is).count() as u64;
    let needed_bytes = schedule.memory_bytes(rails) / 2 * ends;
    match crate::host::available_memory() {
        Some(available) if needed_bytes > available.bytes => {
            Err(faults::memory(needed_bytes, available))
        }
        _ => Ok(()),
    }
}

fn wants(schedule: &Schedule, who: Against) -> bool {
    schedule.against.contains(&who)
}

/// Returns a note if flows use another congestion control than cubic: on one host flows should not pace, but ordinary
/// users can't always choose.
fn note_of_congestion(engine: &Engine) -> Option<String> {
    let stats = engine.stats();
    let mut flows = stats.peers.iter().flat_map(|peer| &peer.rails).flat_map(|rail| &rail.flows);
    let used = &flows.find(|flow| !matches!(&*flow.congestion, "" | "cubic"))?.congestion;
    Some(about_congestion(used, &CongestionControls::read().ok()?))
}

fn about_congestion(used: &str, controls: &CongestionControls) -> String {
    let cost = if used == "bbr" { ", which paces" } else { "" };
    let why = if controls.denies("cubic") {
        format!(
            ": this user may not use cubic; an administrator allows it by `{}`",
            controls.allow("cubic")
        )
    } else if controls.usable.iter().any(|name| name == "cubic") {
        String::new()
    } else {
        ": the kernel has no cubic; `sudo modprobe tcp_cubic` loads it where it is a module".into()
    };
    format!("flows use {used}{cost}{why}")
}

fn notes(schedule: &Schedule, same_host: bool, on_devices: bool) -> Vec<String> {
    let mut notes = Vec::new();
    if schedule.verify == Verify::Off {
        notes.push("the data were not verified (--verify off)".into());
    }
    if wants(schedule, Against::Raw) && schedule.segments > 1 {
        notes.push("the plain sockets move contiguous memory, not segments".into());
    }
    if wants(schedule, Against::Raw) && on_devices {
        notes.push("the plain sockets move memory of the host at both ends".into());
    }
    if let Some(asked) = schedule.fit.as_ref().filter(|_| same_host) {
        notes.push(format!(
            "both ends are on this machine: the kernel delivers on the sender's CPU, so part of what receiving costs counts \
             as sending, and no NIC takes part of the work (checksums, segments, interrupts). With a second machine: \
             polyrail bench --listen there, and polyrail bench --connect ADDR:PORT --fit {} here",
            asked.text
        ));
    }
    if !same_host && schedule.fit.is_none() {
        notes.push("CPU times are those of both machines' processes together".into());
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_of_reno_says_whether_cubic_is_missing_or_denied() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let controls =
            |denied| CongestionControls { usable: names(&["reno", "bbr"]), denied: names(denied) };
        assert_eq!(
            about_congestion("reno", &controls(&["cubic"])),
            "flows use reno: this user may not use cubic; an administrator allows it by \
             `sudo sysctl -w net.ipv4.tcp_allowed_congestion_control=\"reno bbr cubic\"`"
        );
        let missing = about_congestion("bbr", &controls(&[]));
        assert!(
            missing.contains("flows use bbr, which paces: the kernel has no cubic"),
            "{missing}"
        );
        let there = CongestionControls { usable: names(&["cubic"]), denied: Vec::new() };
        assert_eq!(about_congestion("reno", &there), "flows use reno", "the reason is not known");
    }
}
