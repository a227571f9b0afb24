//! Makes endpoints and a plan from the options.

use std::collections::BTreeMap;
use std::fs;

use polyrail_config::{Config, Row};
use polyrail_gpu::Device;
use polyrail_gpu::cuda::Cuda;
use polyrail_profile::{EndpointKind, Folder, Load, PathKind, Plan, PlanBuilder, default_sizes};
use polyrail_profiler::{Estimate, Spot, StationOptions, memory_bytes};
use polyrail_report::{Align, Table, show_memory, show_size};

use super::args::{Args, Gpus, Switch, Warmup, Way};
use super::nccl::{self, Mode};
use crate::cmd::bench::place_together;
use crate::fault::Fault;
use crate::host::{available_memory, hostname};
use crate::progress::{Progress, show_time};
use crate::stdout::fitted;

/// The plan has one sentinel after this many other steps.
const SENTINEL_EVERY: u32 = 200;
/// A link needs two endpoints.
const ENDPOINTS_MIN: usize = 2;
/// Both ends are in this process, so loopback addresses can be rails for all of them, as in `polyrail bench`.
const DEFAULT_RAILS: &str = "127.0.0.1,127.0.0.2,127.0.0.3,127.0.0.4";

/// Key of the engine's settings in `run.yml`.
pub(super) const ENGINE: &str = "engine";
/// Groups of settings that change no time that is measured here.
const WITHOUT_EFFECT: [&str; 3] = ["Rendezvous", "NCCL plugin", "Seeing inside"];

/// Settings by name, as text that parses to the same values.
type Values = BTreeMap<String, String>;

/// Everything that is known before memory is allocated.
pub(super) struct Choice {
    pub(super) options: StationOptions,
    pub(super) plan: Plan,
    /// The paths in the plan.
    pub(super) paths: Vec<PathKind>,
    /// Notes on differences from what the user might expect.
    pub(super) notes: Vec<String>,
    /// Mode in which NCCL moves bytes, if it does.
    pub(super) nccl_mode: Mode,
    /// Settings that the user gave; `None` for a profile that an older version began.
    pub(super) engine: Option<Values>,
}

impl Choice {
    pub(super) fn make(args: &Args) -> Result<Self, Fault> {
        let mut notes = Vec::new();
        nccl::refuse(args)?;
        let resumed = args.resume.as_ref().map(Folder::open).transpose()?;
        let is_asked = args.gpus.is_some() || args.host.is_some();
        let spots = match resumed.as_ref().filter(|_| !is_asked).and_then(spots_of) {
            Some(spots) => spots,
            None => spots(args, &mut notes)?,
        };
        let gpus = spots.iter().filter(|spot| matches!(spot, Spot::Gpu(_))).count();
        let library = nccl::library(args, resumed.as_ref(), gpus, &mut notes)?;
        let nccl_mode = Mode::of(args, resumed.as_ref());
        let (config, engine) = config(args, resumed.as_ref())?;
        let mut options = StationOptions {
            spots,
            hostname: hostname(),
            config,
            max_bytes: 0,
            seed: args.seed.unwrap_or(42),
            has_load: false,
            nccl: library,
        };
        let plan = match resumed {
            Some(folder) => resumed_plan(&folder, &options)?,
            None => new_plan(args, &options)?,
        };
        options.seed = plan.seed;
        options.max_bytes = memory_bytes(&plan);
        options.has_load = plan.configurations.iter().any(|one| one.load != Load::None);
        let mut paths: Vec<PathKind> = plan.configurations.iter().map(|one| one.path).collect();
        paths.sort_unstable();
        paths.dedup();
        let choice = Self { options, plan, paths, notes, nccl_mode, engine };
        choice.refuse_too_large()?;
        Ok(choice)
    }

    /// The plan as text.
    pub(super) fn describe(&self, args: &Args) -> String {
        let estimate = self.estimate(&self.plan, args.verify == Switch::On);
        let mut table = Table::default()
            .column("path", Align::Left)
            .column("pairs", Align::Right)
            .column("sizes", Align::Right)
            .column("loads", Align::Right)
            .column("configurations", Align::Right)
            .column("samples", Align::Right)
            .column("about", Align::Right);
        let steps = self.plan.steps();
        for path in &self.paths {
            let of = || self.plan.configurations.iter().filter(|one| one.path == *path);
            let count = of().count();
            let mine: Vec<_> = steps
                .iter()
                .filter(|step| {
                    self.plan.configuration(step.configuration).is_some_and(|one| one.path == *path)
                })
                .copied()
                .collect();
            table.row([
                path.to_string(),
                distinct(of().map(|one| (one.src, one.dst))).to_string(),
                distinct(of().map(|one| one.size_bytes)).to_string(),
                distinct(of().map(|one| one.load)).to_string(),
                count.to_string(),
                mine.len().to_string(),
                show_time(estimate.steps(&mine)),
            ]);
        }
        let mut text = String::new();
        for endpoint in &self.plan.endpoints {
            let (rank, name, device) = (endpoint.rank, &endpoint.name, &endpoint.device);
            text.push_str(&format!("rank {rank}: {name} ({device})\n"));
        }
        let smallest = self.plan.configurations.iter().map(|one| one.size_bytes).min().unwrap_or(0);
        let largest = self.plan.configurations.iter().map(|one| one.size_bytes).max().unwrap_or(0);
        let repeats = steps.iter().filter(|step| self.plan.is_sentinel(step.repetition)).count();
        let drift = match repeats {
            0 => String::new(),
            _ => format!("{repeats} of the samples repeat one configuration, which shows drift\n"),
        };
        text.push_str(&format!(
            "\n{}{drift}\n{} to {}, {} repetitions after {} warm-ups (half a second of them at most), seed \
             {}, order {}\nAltogether about {}, of which at least {} until the first sample{}.\n",
            fitted(&table),
            show_size(smallest),
            show_size(largest),
            self.plan.repetitions,
            self.plan.warmups,
            self.plan.seed,
            self.plan.order_fnv1a64,
            show_time(estimate.start() + estimate.steps(&steps)),
            show_time(estimate.start()),
            self.beside(args),
        ));
        text
    }

    /// Estimates how long a plan between these endpoints takes. Measures the speed of this machine, which takes
    /// seconds.
    pub(super) fn estimate<'a>(&self, plan: &'a Plan, verify: bool) -> Estimate<'a> {
        let _progress =
            Progress::waiting("trying how fast this machine fills, compares and writes");
        Estimate::here(plan, verify, &self.options.config)
    }

    /// Names the work that the estimate does not include.
    fn beside(&self, args: &Args) -> String {
        let mut beside = Vec::new();
        match args.thermal_warmup {
            _ if self.options.devices().is_empty() => {}
            Warmup::Off => {}
            Warmup::Slope => beside.push("warming GPUs, a minute at most"),
            Warmup::Fixed => beside.push("warming GPUs, one to three minutes"),
        }
        if args.refine {
            beside.push("the sizes that --refine adds");
        }
        match beside.is_empty() {
            true => String::new(),
            false => format!(", and besides {}", beside.join(" and ")),
        }
    }

    fn refuse_too_large(&self) -> Result<(), Fault> {
        let needed = self.options.host_bytes();
        match available_memory() {
            Some(available) if needed > available.bytes / 10 * 9 => {
                let needed = show_memory(needed);
                let text = format!("--sizes: this needs {needed} of memory; allowed: {available}");
                Err(Fault::environment(text)
                    .with_help("measure smaller sizes, such as --sizes 1..256MiB"))
            }
            _ => Ok(()),
        }
    }
}

fn spots(args: &Args, notes: &mut Vec<String>) -> Result<Vec<Spot>, Fault> {
    let mut spots = Vec::new();
    match (&args.gpus, Cuda::load()) {
        (Some(Gpus::None), _) => {}
        (Some(Gpus::These(numbers)), cuda) => {
            let cuda = cuda?;
            for number in numbers {
                spots.push(Spot::Gpu(cuda.device(*number)?));
            }
        }
        (None, Ok(cuda)) => {
            for number in 0..cuda.count() {
                spots.push(Spot::Gpu(cuda.device(number)?));
            }
        }
        (None, Err(error)) => notes.push(format!("no GPUs: {error}")),
    }
    let hosts = args.host.unwrap_or(ENDPOINTS_MIN.saturating_sub(spots.len()) as u32);
    spots.extend((0..hosts).map(|_| Spot::Host));
    if spots.len() < ENDPOINTS_MIN {
        let fault = match spots.len() {
            1 => "give 1 endpoint",
            _ => "give no endpoint",
        };
        let help = format!(
            "measure between endpoints in this machine's memory, too: --host {}",
            hosts as usize + ENDPOINTS_MIN - spots.len()
        );
        let error = Fault::usage("--gpus and --host", "", fault, "2 endpoints or more");
        return Err(error.with_help(help));
    }
    Ok(spots)
}

/// Endpoints of a folder's profile, if this machine has them all.
fn spots_of(folder: &Folder) -> Option<Vec<Spot>> {
    let gpu = |address: &str| {
        let cuda = Cuda::load().ok()?;
        let mut devices = (0..cuda.count()).filter_map(|number| cuda.device(number).ok());
        devices.find(|device| device.identity().pci.to_string() == address)
    };
    let spot = |endpoint: &polyrail_profile::Endpoint| match endpoint.kind {
        EndpointKind::Gpu => gpu(&endpoint.device).map(Spot::Gpu),
        EndpointKind::Host => Some(Spot::Host),
    };
    folder.plan().endpoints.iter().map(spot).collect()
}

/// Returns the engine's settings, and those to record. `path` is always `tcp`: otherwise the path `tcp` would measure
/// another one. A resumed profile keeps its settings.
fn config(args: &Args, resumed: Option<&Folder>) -> Result<(Config, Option<Values>), Fault> {
    let given = args.config.builder()?.build()?;
    let mut builder = args.config.builder()?.set("path", "tcp")?;
    let mut engine = Some(engine_values(&given));
    let mut has_rails = given.origin("rails").is_some_and(|origin| origin.is_explicit());
    if let Some(folder) = resumed {
        engine = begun_with(folder);
        if let Some(before) = &engine {
            refuse_other_settings(folder, &given, before)?;
            for (name, value) in before {
                builder = builder.set(name, value)?;
            }
            has_rails |= before.contains_key("rails");
        }
    }
    if !has_rails {
        builder = builder.set("rails", DEFAULT_RAILS)?;
    }
    // CPUs that both ends of a bench would have: here every engine sends and receives.
    for (name, cpus) in place_together(&builder.clone().build()?) {
        builder = builder.set(name, &cpus)?;
    }
    Ok((builder.build()?, engine))
}

/// Whether a setting changes what is measured here. Names of files only mean something on one machine.
fn has_effect(row: &Row) -> bool {
    let is_elsewhere = row.name.ends_with("_file") || ["path", "listen_port"].contains(&row.name);
    !WITHOUT_EFFECT.contains(&row.group) && !is_elsewhere
}

fn engine_values(config: &Config) -> Values {
    let rows = config.rows().into_iter();
    rows.filter(|row| has_effect(row) && (row.is_changed() || row.origin.is_explicit()))
        .map(|row| (row.name.to_owned(), row.value))
        .collect()
}

/// Settings with which a profile was begun, if it has recorded them.
fn begun_with(folder: &Folder) -> Option<Values> {
    let text = |(name, value): (&String, &serde_json::Value)| {
        Some((name.clone(), value.as_str()?.to_owned()))
    };
    folder.run().settings.get(ENGINE)?.as_object()?.iter().map(text).collect()
}

/// Refuses settings other than before: samples with both would be mixed, and nothing would distinguish them.
fn refuse_other_settings(folder: &Folder, given: &Config, before: &Values) -> Result<(), Fault> {
    let differs = |row: Row| {
        let then = before.get(row.name).unwrap_or(&row.default);
        let is_other = row.origin.is_explicit() && has_effect(&row) && row.value != *then;
        let (name, now, place) = (row.name, &row.value, row.origin.place());
        is_other.then(|| format!("{name} was `{then}`, and here it is `{now}` ({place})"))
    };
    let differences: Vec<String> = given.rows().into_iter().filter_map(differs).collect();
    refuse_differences(folder, "settings", &differences)
}

/// Refuses other variables of NCCL than before, if they change what it does. Those of its log don't.
pub(super) fn refuse_other_environment(
    folder: &Folder,
    now: &BTreeMap<String, String>,
) -> Result<(), Fault> {
    let is_telling = |name: &str| name.starts_with("NCCL_") && !name.starts_with("NCCL_DEBUG");
    let before = &folder.run().environment;
    let names: std::collections::BTreeSet<&String> = before.keys().chain(now.keys()).collect();
    let shown = |value: Option<&String>| value.map_or("not set".into(), |text| format!("`{text}`"));
    let differences: Vec<String> = names
        .into_iter()
        .filter(|name| is_telling(name) && before.get(*name) != now.get(*name))
        .map(|name| {
            let (then, now) = (shown(before.get(name)), shown(now.get(name)));
            format!("{name} was {then}, and here it is {now}")
        })
        .collect();
    refuse_differences(folder, "variables", &differences)
}

fn refuse_differences(folder: &Folder, what: &str, differences: &[String]) -> Result<(), Fault> {
    if differences.is_empty() {
        return Ok(());
    }
    let error = Fault::usage(
        "--resume",
        folder.dir().display().to_string(),
        format!("was begun with other {what}: {}", differences.join("; ")),
        "those that it was begun with",
    );
    let help = "leave them out, and it goes on with its own; or begin another profile: --out";
    Err(error.with_help(if what == "settings" { help } else { "set them as they were" }))
}

fn new_plan(args: &Args, options: &StationOptions) -> Result<Plan, Fault> {
    if let Some(out) = &args.out
        && fs::read_dir(out).is_ok_and(|mut entries| entries.next().is_some())
    {
        return Err(polyrail_profile::ProfileError::NotEmpty { dir: out.clone() }.into());
    }
    let sizes = args.sizes.as_ref().map_or_else(default_sizes, |sizes| sizes.0.clone());
    let here = options.paths();
    let asked: Vec<PathKind> = args.paths.iter().map(|way| way.kind()).collect();
    if let Some(absent) = asked.iter().find(|path| !here.contains(path)) {
        let words: Vec<String> = here.iter().map(|path| Way::word(*path)).collect();
        let fault = "these endpoints don't have it";
        return Err(Fault::usage("--paths", Way::word(*absent), fault, words.join(", ")));
    }
    refuse_twice("--paths", &args.paths, |way| Way::word(way.kind()))?;
    refuse_twice("--pairs", &args.pairs, |(src, dst)| format!("{src}-{dst}"))?;
    refuse_twice("--load", &args.load, |background| background.load().to_string())?;
    let mut loads = vec![Load::None];
    loads.extend(args.load.iter().map(|background| background.load()));
    let mut builder = PlanBuilder::new(options.endpoints())
        .sizes(sizes)
        .loads(loads.clone())
        .repetitions(args.reps.unwrap_or(10))
        .warmups(args.warmups.unwrap_or(5))
        .seed(options.seed)
        .sentinel_every(SENTINEL_EVERY);
    let paths = if asked.is_empty() { here } else { asked };
    refuse_absent_pairs(args, options, &paths)?;
    for path in paths {
        let all = options.pairs(path);
        if path == PathKind::HostMemory && loads.len() > 1 {
            let (fault, allowed) = ("has no meaning for the path host", "for the other paths");
            let error = Fault::usage("--load", "", fault, allowed);
            return Err(error.with_help("name the other paths, such as --paths tcp"));
        }
        let wanted = |pair: &(u32, u32)| args.pairs.is_empty() || args.pairs.contains(pair);
        builder = builder.path_between(path, all.into_iter().filter(wanted).collect::<Vec<_>>());
    }
    refuse_load(args, options)?;
    Ok(builder.build()?)
}

/// Refuses a list that names something twice, which is mostly a typo.
fn refuse_twice<T: PartialEq>(
    option: &'static str,
    given: &[T],
    name: impl Fn(&T) -> String,
) -> Result<(), Fault> {
    match (1..given.len()).find(|place| given[..*place].contains(&given[*place])) {
        Some(place) => {
            Err(Fault::usage(option, name(&given[place]), "is named twice", "each once"))
        }
        None => Ok(()),
    }
}

/// Refuses pairs that no path has; the plan would leave them out silently.
fn refuse_absent_pairs(
    args: &Args,
    options: &StationOptions,
    paths: &[PathKind],
) -> Result<(), Fault> {
    let has = |pair: &(u32, u32)| paths.iter().any(|path| options.pairs(*path).contains(pair));
    let Some((src, dst)) = args.pairs.iter().find(|pair| !has(pair)) else { return Ok(()) };
    let last = options.spots.len() - 1;
    let words: Vec<String> = paths.iter().map(|path| Way::word(*path)).collect();
    let fault = format!("is not a pair of {}", words.join(", "));
    let allowed = format!("pairs of two ranks from 0 to {last}");
    Err(Fault::usage("--pairs", format!("{src}-{dst}"), fault, allowed))
}

/// Refuses background load if there are no endpoints for it beside the pair's own.
fn refuse_load(args: &Args, options: &StationOptions) -> Result<(), Fault> {
    for background in &args.load {
        let needed = if background.load() == Load::Disjoint { 4 } else { 3 };
        let have = options.spots.len();
        if have < needed {
            let fault = format!("takes {needed} endpoints; here are {have}");
            let allowed = format!("with --host {needed}, or more GPUs");
            let given = background.load().to_string().replace('_', "-");
            return Err(Fault::usage("--load", given, fault, allowed));
        }
    }
    Ok(())
}

/// The plan of a folder, if it is of this machine.
fn resumed_plan(folder: &Folder, options: &StationOptions) -> Result<Plan, Fault> {
    let plan = folder.plan().clone();
    let same = |a: &polyrail_profile::Endpoint, b: &polyrail_profile::Endpoint| {
        (a.kind, &a.device, &a.host) == (b.kind, &b.device, &b.host)
    };
    let mine = options.endpoints();
    let name = |one: &polyrail_profile::Endpoint| {
        let kind = match one.kind {
            EndpointKind::Gpu => "gpu",
            EndpointKind::Host => "host",
        };
        format!("{kind} {} on {}", one.device, one.host)
    };
    let mut pairs = plan.endpoints.iter().zip(&mine).enumerate();
    let difference = match pairs.find(|(_, (then, now))| !same(then, now)) {
        Some((rank, (then, now))) => {
            format!("its rank {rank} is {}, and here it is {}", name(then), name(now))
        }
        None if mine.len() == plan.endpoints.len() => return Ok(plan),
        None => format!("it has {} endpoints, and here are {}", plan.endpoints.len(), mine.len()),
    };
    let error = Fault::usage(
        "--resume",
        folder.dir().display().to_string(),
        format!("is a profile of other endpoints: {difference}"),
        "a profile of those that are here",
    );
    Err(error.with_help("resume it on the same machine, without --gpus and --host"))
}

fn distinct<T: Ord>(values: impl Iterator<Item = T>) -> usize {
    values.collect::<std::collections::BTreeSet<_>>().len()
}
