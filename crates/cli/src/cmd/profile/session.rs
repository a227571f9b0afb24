//! Fills the folder of a profile.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use polyrail_analyze::{Analysis, Options};
use polyrail_profile::{
    Claim, Configuration, Folder, Load, Metric, Part, PathKind, Plan, ProfileError, Recorder, Run,
    State, Step, Temperature, Word, allowed_environment, shown_path,
};
use polyrail_profiler::{
    Hooks, Limits, Outcome, Rewarm, Rewarmed, Station, WARMING, Watcher, busy_devices,
    reference_ns, run,
};
use polyrail_report::{counted, exit, median, show_size};
use serde_json::{Value, json};

use super::args::{Args, Switch, Way};
use super::choice::{Choice, ENGINE, refuse_other_environment};
use super::lock::Locked;
use super::nccl::MODE;
use super::warm::warm;
use crate::fault::Fault;
use crate::host::describe;
use crate::interrupt::Interrupt;
use crate::progress::{Progress, show_taken, show_time};
use crate::stdout::tell;
use crate::unwritten::Unwritten;

/// The message for an interrupt before anything has changed.
pub(super) const UNCHANGED: &str = "interrupted: nothing was measured, and the folder is unchanged";

/// Fault of a folder in which a profile can't begin.
fn unwritten(dir: &Path, error: ProfileError) -> Fault {
    match error {
        ProfileError::Io { source, .. } => Unwritten::at(dir)(source).into(),
        other => other.into(),
    }
}

/// End of the note on a table that was missing in a folder.
const LOST: &str = "was missing when the profile was resumed";

/// Setting with the command line that began a profile, once another one has resumed it.
const FIRST_ARGUMENTS: &str = "first_arguments";

/// A folder can be resumed as long as wall clock and reference clock have moved apart by at most this, in ns.
const RESUME_APART_NS: i64 = 1_000_000_000;

/// Measures what the folder lacks. Returns the text to print and the exit code. `claim` is on the folder that is
/// resumed.
pub(super) fn fill(
    args: &Args,
    choice: Choice,
    claim: Option<Claim>,
    interrupt: &Interrupt,
) -> Result<(String, u8), Fault> {
    let begin = Instant::now();
    let devices = choice.options.devices();
    let identities: Vec<_> = devices.iter().map(|(_, identity)| identity.clone()).collect();
    let foreign = busy_devices(&identities);
    if let Some(first) = foreign.first().filter(|_| !args.allow_busy) {
        let name = first.name.as_deref().unwrap_or("of unknown name");
        let text = format!("cuda:{} is used by process {} ({name})", first.device, first.pid);
        return Err(Fault::environment(text).with_help(
            "wait for it, choose others with --gpus, or give --allow-busy: then every sample is flagged",
        ));
    }
    if let Some(out) = &args.out {
        Folder::try_out(out).map_err(|error| unwritten(out, error))?;
    }
    if args.lock_clocks.is_some() {
        // Locked clocks have to be unlocked.
        interrupt.end_in_order();
    }
    let _locked = args.lock_clocks.map(|mhz| Locked::lock(&identities, mhz)).transpose()?;
    let mut run_file = about(&choice);
    if let Some(dir) = args.resume.as_ref().filter(|_| choice.paths.contains(&PathKind::Nccl)) {
        refuse_other_environment(&Folder::open(dir)?, &run_file.environment)?;
    }
    run_file.settings.insert("locked_clocks_mhz".into(), json!(args.lock_clocks));
    let watcher = open_watcher(&devices, &mut run_file);
    refuse_rewarm(args, &choice.paths, watcher.as_ref())?;
    let verify = args.verify == Switch::On;
    let estimate = choice.estimate(&choice.plan, verify);
    let steps = steps_left(args, &choice)?;
    let steps_time = estimate.steps(&steps);
    let progress = Progress::new();
    progress.plan_time(estimate.start() + steps_time);
    progress.say("preparing memory, engines and paths");
    let mut station = Station::open(&choice.options, &choice.paths)?;
    interrupt.end_in_order();
    let is_interrupted = || interrupt.is_raised();
    if !devices.is_empty() {
        progress.say("warming GPUs");
    }
    let warmed = warm(args.thermal_warmup, &mut station, watcher.as_ref(), &is_interrupted)?;
    run_file.notes.extend(station.notes().iter().cloned().chain(warmed));
    progress.say("measuring what the timers can show");
    let limits = measure_timers(&station, &mut run_file, args, !foreign.is_empty())?;
    run_file.clocks.extend(station.clocks().iter().map(|clock| clock.describe()));

    if is_interrupted() {
        return Err(Fault { message: UNCHANGED.to_owned(), ..Fault::interrupted() });
    }
    drop(claim);
    let mut recorder = match &args.resume {
        Some(dir) => resume(dir, &mut run_file)?,
        None => {
            let out = args.out.clone().unwrap_or_else(|| PathBuf::from("profile"));
            Folder::create(out, &choice.plan, &run_file)?
        }
    };
    let driver = watcher.as_ref().and_then(Watcher::driver);
    let mut metadata = station.metadata(driver.as_deref());
    for one in &metadata {
        recorder.write_metadata(one)?;
    }
    let watcher = watcher.as_ref();
    let prepared = begin.elapsed();
    progress.plan_time(steps_time);
    let what = if args.resume.is_some() { "are left" } else { "to take" };
    progress.beside().say(|_| {
        let (prepared, left) = (show_taken(prepared), show_time(steps_time));
        let samples = counted(steps.len() as u64, "sample");
        format!("{samples} {what}, about {left}; preparing took {prepared}")
    });
    let share = prepared.as_secs_f64() / (prepared + steps_time).as_secs_f64();
    let shown = (&progress, share);
    let mut outcome = pass(&mut station, &recorder, watcher, &limits, &is_interrupted, shown);
    drop(progress);
    if args.refine && outcome.state == State::Complete {
        let added = refine(&mut recorder)?;
        run_file.notes.push(format!("{added} configurations were added around breaks"));
        let progress = Progress::new();
        let shown = (&progress, 0.0);
        let second = pass(&mut station, &recorder, watcher, &limits, &is_interrupted, shown);
        outcome = Outcome {
            samples: outcome.samples + second.samples,
            wrong: outcome.wrong + second.wrong,
            rewarmed: [outcome.rewarmed, second.rewarmed].concat(),
            ..second
        };
    }
    // A folder that can't be written is left as it is.
    if outcome.error.is_none() {
        for one in &mut metadata {
            one.details.extend(thermal_summary(&recorder.folder().temperatures()?, one.rank));
            recorder.write_metadata(one)?;
        }
        run_file.overhead_percent = overhead_by_host(&recorder, limits.floor_host_ns)?;
    }
    note_rewarmed(&mut run_file, &outcome.rewarmed);
    finish(recorder, run_file, outcome, begin.elapsed())
}

/// Refuses --rewarm without NVML, which reports temperatures, or without transfers between GPUs.
fn refuse_rewarm(args: &Args, paths: &[PathKind], watcher: Option<&Watcher>) -> Result<(), Fault> {
    let lacks = match (args.rewarm, watcher) {
        (None, _) => return Ok(()),
        (_, None) => "needs NVML, which tells temperatures of GPUs",
        (_, Some(_)) if !paths.iter().any(|path| WARMING.contains(path)) => {
            "needs a path between GPUs, such as peer"
        }
        _ => return Ok(()),
    };
    let allowed = "with GPUs whose temperatures NVML tells, and a path between them";
    Err(Fault::usage("--rewarm", "", lacks, allowed))
}

/// Records in the folder each time that GPUs were warmed again.
fn note_rewarmed(run: &mut Run, rewarmed: &[Rewarmed]) {
    if rewarmed.is_empty() {
        return;
    }
    let seconds: f64 = rewarmed.iter().map(|one| one.took_s).sum();
    run.notes
        .push(format!("GPUs were warmed again {} times, {seconds:.0} s in all", rewarmed.len()));
    let list = rewarmed.iter().map(|one| {
        json!({
            "at_ns": one.at_ns, "rank": one.rank, "from_c": one.from_c, "to_c": one.to_c,
            "warm_c": one.warm_c, "took_s": one.took_s,
        })
    });
    run.settings.insert("rewarmed".into(), list.collect());
}

/// Steps that have no sample yet.
fn steps_left(args: &Args, choice: &Choice) -> Result<Vec<Step>, Fault> {
    let done = match &args.resume {
        Some(dir) => Folder::open(dir)?.samples()?,
        None => Vec::new(),
    };
    let done = done.iter().map(|sample| (sample.configuration, sample.repetition));
    Ok(choice.plan.remaining(&done.collect()))
}

/// `1MiB from node0 to node1 by the path host: sample 3 of 20`.
fn title(plan: &Plan, next: &Configuration, repetition: u32) -> String {
    let name = |rank: u32| plan.endpoints.get(rank as usize).map_or("", |one| one.name.as_str());
    let size = show_size(next.size_bytes);
    let (from, to, path) = (name(next.src), name(next.dst), Way::word(next.path));
    let beside = match next.load {
        Load::None => String::new(),
        load => format!(" with --load {}", load.word().replace('_', "-")),
    };
    let sample = match plan.is_sentinel(repetition) {
        true => "a look whether anything drifts".to_owned(),
        false => format!("sample {} of {}", repetition + 1, plan.repetitions),
    };
    format!("{size} from {from} to {to} by the path {path}{beside}: {sample}")
}

/// Runs the steps that are left, and shows the progress, which begins at this share of the whole.
fn pass(
    station: &mut Station,
    recorder: &Recorder,
    watcher: Option<&Watcher>,
    limits: &Limits,
    is_interrupted: &dyn Fn() -> bool,
    (progress, begins_at): (&Progress, f64),
) -> Outcome {
    let plan = recorder.folder().plan();
    let show = |share: f64, next: &Configuration, repetition: u32| {
        let share = begins_at + (1.0 - begins_at) * share;
        progress.show(share, &title(plan, next, repetition));
    };
    let hooks = Hooks { is_interrupted, progress: &show };
    let outcome = run(station, recorder, watcher, limits, &hooks);
    progress.clear();
    outcome
}

fn finish(
    mut recorder: Recorder,
    mut run_file: Run,
    outcome: Outcome,
    elapsed: Duration,
) -> Result<(String, u8), Fault> {
    run_file.state = outcome.state;
    run_file.reason.clone_from(&outcome.reason);
    run_file.settings.insert("elapsed_s".into(), json!(elapsed.as_secs_f64()));
    let finished = recorder.finish(&run_file);
    if let Some(error) = outcome.error {
        return Err(error.into());
    }
    finished?;
    for failure in &outcome.failures {
        tell!("polyrail: {failure}");
    }
    let dir = shown_path(recorder.folder().dir());
    let left = recorder.remaining().len();
    let mut text = format!(
        "{} in {}, preparing included, {left} left, {} wrong: {dir}\n",
        counted(outcome.samples, "sample"),
        show_taken(elapsed),
        outcome.wrong
    );
    text.push_str(&match outcome.state {
        State::Complete => format!("polyrail analyze {dir} --html report.html\n"),
        _ => format!("polyrail profile --resume {dir}\n"),
    });
    let code = match outcome.state {
        _ if outcome.wrong > 0 => exit::DATA,
        State::Complete => exit::OK,
        State::Interrupted => exit::INTERRUPTED,
        State::Running | State::Failed => exit::PEER,
    };
    Ok((text, code))
}

fn about(choice: &Choice) -> Run {
    let host = describe();
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut run = Run {
        polyrail_version: env!("CARGO_PKG_VERSION").into(),
        arguments: std::env::args().skip(1).collect(),
        hostname: host.hostname,
        kernel: Some(host.kernel),
        unix_ns: unix.as_nanos() as i64,
        reference_ns: reference_ns(),
        environment: allowed_environment(std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        })),
        notes: choice.notes.clone(),
        ..Run::default()
    };
    run.settings.insert("cpu_model".into(), json!(host.cpu_model));
    run.settings.insert("cpus_allowed".into(), json!(host.cpus_allowed));
    run.settings.insert("warmups_ms_max".into(), json!(500));
    if let Some(nccl) =
        choice.options.nccl.as_ref().filter(|_| choice.paths.contains(&PathKind::Nccl))
    {
        let version =
            nccl.version().ok().map(|(major, minor, patch)| format!("{major}.{minor}.{patch}"));
        run.settings.insert("nccl_version".into(), json!(version));
        run.settings.insert(MODE.into(), json!(choice.nccl_mode.word()));
    }
    run.settings.insert("rails".into(), json!(choice.options.config.rails));
    if let Some(engine) = &choice.engine {
        run.settings.insert(ENGINE.into(), json!(engine));
    }
    run
}

fn open_watcher(devices: &[(u32, polyrail_gpu::Identity)], run: &mut Run) -> Option<Watcher> {
    if devices.is_empty() {
        return None;
    }
    match Watcher::open(devices) {
        Ok(watcher) => Some(watcher),
        Err(why) => {
            tell!("polyrail: warning: no temperatures: {why}");
            run.notes.push(format!("no temperatures: {why}"));
            None
        }
    }
}

/// Measures the floor of the timers, the overhead of measuring, and the latency of a flag between GPUs.
fn measure_timers(
    station: &Station,
    run: &mut Run,
    args: &Args,
    is_foreign: bool,
) -> Result<Limits, Fault> {
    let floor_host_ns = station.host_floor_ns();
    run.timer_floor_ns.insert(Metric::Host.word().into(), floor_host_ns);
    let mut floor_gpu_ns = HashMap::new();
    for path in [PathKind::CopyEngine, PathKind::Kernel] {
        if let Some(floor_ns) = station.gpu_floor_ns(path)? {
            floor_gpu_ns.insert(path, floor_ns);
            run.settings.insert(format!("timer_floor_ns_{path}"), json!(floor_ns));
            let of_all = run.timer_floor_ns.entry(Metric::Gpu.word().into()).or_insert(0.0);
            *of_all = of_all.max(floor_ns);
        }
    }
    run.settings.insert("stamps_between_copies_percent".into(), json!(station.stamps_percent()?));
    for latency in station.peer_latencies()? {
        let name = format!("flag_rtt2_ns_s{}d{}", latency.src, latency.dst);
        run.settings.insert(name, json!({"median": latency.median_ns, "min": latency.min_ns}));
    }
    run.settings.insert("verify".into(), json!(args.verify == Switch::On));
    Ok(Limits {
        verify: args.verify == Switch::On,
        is_foreign,
        floor_host_ns: Some(floor_host_ns),
        floor_gpu_ns,
        rewarm: args.rewarm.map(|degrees| Rewarm::colder(f64::from(degrees))),
    })
}

/// Resumes a folder whose clock is still this machine's.
fn resume(dir: &PathBuf, run: &mut Run) -> Result<Recorder, Fault> {
    // Resuming makes missing tables again. Note which ones, because the first samples lack them.
    let lost: Vec<String> = Folder::open(dir)?
        .missing()?
        .into_iter()
        .filter(|part| !matches!(part, Part::Metadata { .. }))
        .map(|part| format!("{part} {LOST}"))
        .collect();
    let mut recorder = Folder::resume(dir)?;
    let before = recorder.folder().run().clone();
    let apart = before.to_unix_ns(run.reference_ns).saturating_sub(run.unix_ns);
    if apart.abs() > RESUME_APART_NS {
        let fault = "is of before this machine was started again, or its clock was set";
        let (given, allowed) = (dir.display().to_string(), "a profile of since then");
        return Err(Fault::usage("--resume", given, fault, allowed));
    }
    run.unix_ns = before.unix_ns;
    run.reference_ns = before.reference_ns;
    let begun_with = before.settings.get(FIRST_ARGUMENTS).cloned();
    let first = begun_with.unwrap_or_else(|| json!(before.arguments));
    run.settings.insert(FIRST_ARGUMENTS.into(), first);
    let stays = |note: &String| note.contains("breaks") || note.ends_with(LOST);
    run.notes.extend(before.notes.into_iter().filter(stays).chain(lost));
    run.notes.push(format!("resumed {} times", recorder.session()));
    recorder.write_run(run)?;
    Ok(recorder)
}

/// Adds sizes around every break that the analysis finds. Returns the number of new configurations.
fn refine(recorder: &mut Recorder) -> Result<usize, Fault> {
    let extra = Analysis::of(recorder.folder(), Options::default())?.sizes_around_breaks(4);
    Ok(if extra.is_empty() { 0 } else { recorder.refine(extra)? })
}

/// Temperature, power and clock of a device over the run; empty without any reading.
fn thermal_summary(looks: &[Temperature], rank: u32) -> Vec<(String, Value)> {
    let looks: Vec<&Temperature> = looks.iter().filter(|look| look.rank == rank).collect();
    let range = |name: &str, values: Vec<f64>| {
        let least = values.iter().copied().reduce(f64::min)?;
        let most = values.iter().copied().reduce(f64::max)?;
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        Some((name.to_owned(), json!({"min": least, "mean": mean, "max": most})))
    };
    let clock = |look: &&Temperature| look.sm_clock_mhz.map(f64::from);
    let mut found: Vec<(String, Value)> = [
        range("temperature_c", looks.iter().filter_map(|look| look.temperature_c).collect()),
        range("power_w", looks.iter().filter_map(|look| look.power_w).collect()),
        range("sm_clock_mhz", looks.iter().filter_map(clock).collect()),
    ]
    .into_iter()
    .flatten()
    .collect();
    if !found.is_empty() {
        let throttled = looks.iter().filter(|look| look.is_throttled()).count();
        found.push(("looks".into(), json!({"all": looks.len(), "throttled": throttled})));
    }
    found
}

/// Overhead of measuring a transfer that the host times: two readings of the clock, in percent of the median time by
/// size. The cost of gates and stamps is in the floor of the timer.
fn overhead_by_host(
    recorder: &Recorder,
    floor_ns: Option<f64>,
) -> Result<std::collections::BTreeMap<String, f64>, Fault> {
    let mut times: std::collections::BTreeMap<u64, Vec<f64>> = Default::default();
    let plan = recorder.folder().plan();
    for sample in recorder.folder().samples()? {
        if let (Some(one), Some(time)) =
            (plan.configuration(sample.configuration), sample.t_host_ns)
            && one.size_bytes >= 1 << 20
        {
            times.entry(one.size_bytes).or_default().push(time);
        }
    }
    let share = |(bytes, times): (u64, Vec<f64>)| {
        let median = median(times)?;
        floor_ns.map(|floor| (bytes.to_string(), 200.0 * floor / median.max(1.0)))
    };
    Ok(times.into_iter().filter_map(share).collect())
}

#[cfg(test)]
mod tests {
    use polyrail_profile::synthetic::Machine;

    use super::*;

    #[test]
    fn what_is_measured_is_told_in_the_words_of_the_options() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("p");
        Machine { endpoints: 2, repetitions: 6, ..Machine::default() }.profile(&dir).unwrap();
        let plan = Folder::open(&dir).unwrap().plan().clone();
        let one = Configuration { size_bytes: 1 << 20, load: Load::None, ..plan.configurations[0] };
        let [from, to] = [one.src, one.dst].map(|rank| plan.endpoints[rank as usize].name.clone());
        let peer = Configuration { path: PathKind::CopyEngine, ..one };
        let wanted = format!("1MiB from {from} to {to} by the path peer: sample 3 of 6");
        assert_eq!(title(&plan, &peer, 2), wanted);
        let loaded = Configuration { path: PathKind::HostMemory, load: Load::SameSource, ..one };
        let text = title(&plan, &loaded, 6);
        assert!(text.contains("by the path host with --load same-source: a look"), "{text}");
    }

    #[test]
    fn more_sizes_lie_inside_the_gaps_where_the_analysis_finds_breaks() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("p");
        Machine { endpoints: 2, repetitions: 6, ..Machine::default() }.profile(&dir).unwrap();
        let mut recorder = Folder::resume(&dir).unwrap();
        let before = recorder.folder().plan().configurations.len();
        let added = refine(&mut recorder).unwrap();
        let plan = recorder.folder().plan();
        assert!(added > 0 && plan.configurations.len() == before + added);
        assert!(added.is_multiple_of(4), "{added}");
        for one in &plan.configurations[before..] {
            assert!(one.stage == 1 && !one.size_bytes.is_power_of_two(), "{one:?}");
        }
        // None of them is measured yet, and a sentinel may be among them.
        assert!(recorder.remaining().len() >= added * 6);
    }

    #[test]
    fn a_device_is_summed_up_by_what_it_said() {
        let look = |rank, temperature_c, reasons| Temperature {
            rank,
            temperature_c: Some(temperature_c),
            clock_reasons: Some(reasons),
            ..Temperature::default()
        };
        let looks = [look(0, 30.0, 0), look(1, 90.0, 0), look(0, 40.0, 0x20)];
        let found: HashMap<_, _> = thermal_summary(&looks, 0).into_iter().collect();
        assert_eq!(found["temperature_c"], json!({"min": 30.0, "mean": 35.0, "max": 40.0}));
        assert_eq!(found["looks"], json!({"all": 2, "throttled": 1}));
        assert!(thermal_summary(&looks, 2).is_empty());
    }
}
