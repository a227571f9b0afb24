//! Runs size after size on the ranks, plugin after plugin.

use std::time::Instant;

use polyrail_collective::{Shape, Spec};
use polyrail_config::Config;
use polyrail_report::{exit, show_memory};

use super::args::{Args, Contestant};
use super::crew::Crew;
use super::place::Place;
use super::render;
use super::report::{CollectiveReport, PluginReport, SizeReport};
use crate::config_args::print_warnings;
use crate::fault::Fault;
use crate::interrupt::{AtOnce, Interrupt};
use crate::libraries::{self, INSTALL, VARIABLE, named};
use crate::progress::Progress;
use crate::stdout::tell;

const PLUGIN: &str = "polyrail";

/// Place, settings and interrupt, which all crews share.
type Surroundings<'r> = (&'r Place, &'r Config, &'r Interrupt);

/// Measures everything, and prints and writes the results.
pub(crate) fn run(args: &Args) -> Result<(), Fault> {
    let sizes = args.sizes()?;
    let settings = args.config.resolve()?;
    print_warnings(&settings);
    let (plugin, note) = plugin(args)?;
    let mut contestants = vec![plugin];
    if let Some(other) = &args.compare {
        contestants.push(found("--compare", other)?);
    }
    let interrupt = Interrupt::install(AtOnce::Second)?;
    let place = Place::find(args)?;
    let started = Instant::now();
    let mut report = CollectiveReport::new(args, &place);
    report.head.notes.extend(note);
    let measured = measure(args, &sizes, contestants, (&place, &settings, &interrupt), &mut report);
    report.head.elapsed_s = started.elapsed().as_secs_f64();
    report.head.error = measured.as_ref().err().map(ToString::to_string);
    let shown = render::show(&report, args.json.as_deref());
    measured.and(shown).and(place.end())
}

/// Returns the plugin to measure: that of `--plugin`, else that of NCCL_NET_PLUGIN, else Polyrail's. Falls back to the
/// baseline, with a note, if NCCL_NET_PLUGIN is `none` or no plugin is installed. `--compare` needs a plugin to
/// compare, so it has no such fallback.
fn plugin(args: &Args) -> Result<(Contestant, Option<String>), Fault> {
    if let Some(given) = &args.plugin {
        return Ok((found("--plugin", given)?, None));
    }
    let named = named();
    let is_none = named.as_deref().is_some_and(|name| name.eq_ignore_ascii_case("none"));
    let why = match &named {
        _ if args.compare.is_some() => None,
        Some(name) if is_none => Some(format!("{VARIABLE} is {name}")),
        None if libraries::is_missing(PLUGIN) => Some("no plugin is installed".to_owned()),
        _ => None,
    };
    if let Some(why) = why {
        let install = if is_none { String::new() } else { format!("; install it: {INSTALL}") };
        let note = format!("{why}, so this measures the built-in sockets{install}");
        tell!("polyrail: {note}");
        return Ok((Contestant::SOCKETS, Some(note)));
    }
    let plugin = match named.filter(|_| !is_none) {
        Some(name) => found(VARIABLE, &Contestant::Plugin(name)),
        None => found("--plugin", &Contestant::Plugin(PLUGIN.into())),
    };
    Ok((plugin?, None))
}

/// Returns the library that each rank will load, after loading it here as a check.
fn found(option: &'static str, over: &Contestant) -> Result<Contestant, Fault> {
    let Contestant::Plugin(name) = over else { return Ok(over.clone()) };
    let library = libraries::find(name).map_err(|fault| {
        let text = format!("{option} `{name}`: {}; allowed: a net plugin of NCCL", fault.message);
        Fault { message: text, code: exit::ENVIRONMENT, ..fault }
    })?;
    Ok(Contestant::Plugin(library.name().to_owned()))
}

fn measure(
    args: &Args,
    sizes: &[usize],
    contestants: Vec<Contestant>,
    surroundings: Surroundings<'_>,
    report: &mut CollectiveReport,
) -> Result<(), Fault> {
    let (progress, mut crews) = (Progress::new(), Vec::new());
    let spec = Spec {
        rank: 0,
        ranks: report.ranks,
        channels: report.channels,
        operation: report.operation,
        element: report.element,
        max_bytes: sizes.iter().copied().max().unwrap_or_default(),
    };
    let started = contestants.into_iter().try_for_each(|over| {
        progress.say(format!("starting {} ranks over {}", spec.ranks, over.name()));
        crews.push(Crew::start(args, spec, over, surroundings)?);
        crews.last_mut().map_or(Ok(()), |crew| crew.meet(spec))
    });
    let measured = started.and_then(|()| {
        let plugins = crews.iter().map(|crew| PluginReport::new(&crew.over, &crew.about));
        report.plugins = plugins.collect();
        all_sizes(args, sizes, &spec, &mut crews, &progress, report)
    });
    debug_assert!(measured.is_err() || progress.is_whole(), "the plan is not the work");
    progress.clear();
    if measured.is_err() {
        // Wait for the last output of the plugins: it may contain the cause.
        crews.iter_mut().for_each(Crew::end);
    }
    report.head.notes.extend(crews.iter().flat_map(Crew::warnings));
    measured?;
    match report.wrong() {
        0 => Ok(()),
        wrong => {
            let text = format!("{wrong} elements of {} are wrong", spec.operation.name());
            Err(Fault::new(exit::DATA, text).with_help(
                "don't use this plugin for data; for Polyrail's own, please report it with the command line",
            ))
        }
    }
}

fn all_sizes(
    args: &Args,
    sizes: &[usize],
    spec: &Spec,
    crews: &mut [Crew<'_>],
    progress: &Progress,
    report: &mut CollectiveReport,
) -> Result<(), Fault> {
    let shape = |size: &usize| spec.operation.shape(*size, spec.element, spec.ranks);
    let mut shapes: Vec<Shape> = sizes.iter().map(shape).collect();
    // Several sizes may be rounded to one shape.
    shapes.dedup();
    let bytes = |shape: &Shape| spec.operation.bytes(*shape, spec.element) as u64;
    let turns = turns(args, crews.len());
    progress.plan(all_work(shapes.iter().map(bytes), &turns));
    for (number, shape) in shapes.iter().enumerate() {
        let bytes = bytes(shape);
        progress.say(format!("{} of {}", spec.operation.name(), show_memory(bytes)));
        let found =
            one_size(args, crews, &turns, *shape, number as u64, || progress.did(work(bytes)))
                .inspect_err(|_| report.head.notes.extend(partial(number, shapes.len())))?;
        for (plugin, (samples_us, wrong)) in report.plugins.iter_mut().zip(found) {
            let factor = spec.operation.bus_factor(spec.ranks);
            let count = shape.count as u64;
            let size = SizeReport::new(bytes, count, factor, samples_us, wrong);
            size.into_iter().for_each(|size| plugin.add(size));
        }
        report.compare();
    }
    Ok(())
}

fn all_work(sizes: impl Iterator<Item = u64>, turns: &[Turn]) -> f64 {
    sizes.map(|bytes| work(bytes) * turns.len() as f64).sum()
}

/// Share of a run of this many bytes in the progress. Even the smallest run takes some time.
fn work(bytes: u64) -> f64 {
    (bytes + (1 << 20)) as f64
}

/// Note on the sizes that the means of a run that ended early cover.
fn partial(done: usize, all: usize) -> Option<String> {
    let note = || {
        format!("the run ended early: {done} of {all} sizes were measured, and means are of these")
    };
    (done > 0).then(note)
}

/// For each crew the times of one operation in microseconds, and the number of wrong elements if it was checked.
type Found = Vec<(Vec<f64>, Option<u64>)>;

/// A step of one size.
#[derive(Clone, Copy)]
enum Turn {
    Run { round: u32, crew: usize },
    Check { crew: usize },
}

fn turns(args: &Args, crews: usize) -> Vec<Turn> {
    let mut turns = Vec::new();
    for round in 0..args.rounds {
        let mut order: Vec<usize> = (0..crews).collect();
        // Alternate, so that neither crew always comes second.
        if round % 2 == 1 {
            order.reverse();
        }
        turns.extend(order.into_iter().map(|crew| Turn::Run { round, crew }));
    }
    if args.is_checked() {
        turns.extend((0..crews).map(|crew| Turn::Check { crew }));
    }
    turns
}

fn one_size(
    args: &Args,
    crews: &mut [Crew<'_>],
    turns: &[Turn],
    shape: Shape,
    number: u64,
    did_run: impl Fn(),
) -> Result<Found, Fault> {
    let mut found: Found = crews.iter().map(|_| (Vec::new(), None)).collect();
    for turn in turns {
        match *turn {
            Turn::Run { round, crew } => {
                let seed = number * 1000 + u64::from(round);
                let times = [args.warmup, args.iterations];
                let seconds = crews[crew].run(shape, times, seed)?;
                let mean = seconds.iter().sum::<f64>() / seconds.len() as f64;
                found[crew].0.push(mean / f64::from(args.iterations) * 1e6);
            }
            Turn::Check { crew } => {
                found[crew].1 = Some(crews[crew].check(shape, u64::MAX - number)?);
            }
        }
        did_run();
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(clap::Parser)]
    struct Parsed {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn the_turns_of_all_sizes_are_the_whole_plan() {
        let args = Parsed::parse_from(["collective", "all_reduce", "--rounds", "3"]).args;
        let turns = turns(&args, 2);
        let of = |number| {
            let of_round = |turn: &Turn| match *turn {
                Turn::Run { round, crew } if round == number => Some(crew),
                _ => None,
            };
            turns.iter().filter_map(of_round).collect::<Vec<_>>()
        };
        assert_eq!([0, 1, 2].map(of), [[0, 1], [1, 0], [0, 1]]);
        let (sizes, progress) = ([8, 1 << 20, 1 << 30], Progress::new());
        progress.plan(all_work(sizes.into_iter(), &turns));
        for size in sizes {
            for _ in &turns {
                assert!(!progress.is_whole());
                progress.did(work(size));
            }
        }
        assert!(progress.is_whole());
    }

    #[test]
    fn a_run_that_ended_early_says_what_its_means_are_of() {
        let note = partial(2, 31).unwrap();
        assert!(note.contains("2 of 31 sizes were measured"), "{note}");
        assert_eq!(partial(0, 31), None, "there are no figures then");
    }
}
