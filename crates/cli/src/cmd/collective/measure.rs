//! Has the ranks run size after size, plugin after plugin.

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
use crate::libraries;
use crate::progress::Progress;

/// What all crews share.
type Surroundings<'r> = (&'r Place, &'r Config, &'r Interrupt);

/// Measures everything, and prints and writes what came of it.
pub(crate) fn run(args: &Args) -> Result<(), Fault> {
    let sizes = args.sizes()?;
    let settings = args.config.resolve()?;
    print_warnings(&settings);
    let mut contestants = vec![found("--plugin", &args.plugin)?];
    if let Some(other) = &args.compare {
        contestants.push(found("--compare", other)?);
    }
    let interrupt = Interrupt::install(AtOnce::Second)?;
    let place = Place::find(args)?;
    let started = Instant::now();
    let mut report = CollectiveReport::new(args, &place);
    let measured = measure(args, &sizes, contestants, (&place, &settings, &interrupt), &mut report);
    report.head.elapsed_s = started.elapsed().as_secs_f64();
    report.head.error = measured.as_ref().err().map(ToString::to_string);
    place.end()?;
    let shown = render::show(&report, args.json.as_deref());
    measured.and(shown)
}

/// The library that each rank will load; it is loaded here to see that it is one.
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
    progress.clear();
    if measured.is_err() {
        // What the plugins have said is worth waiting for.
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
    // Several sizes may be rounded to one.
    shapes.dedup();
    let bytes = |shape: &Shape| spec.operation.bytes(*shape, spec.element) as u64;
    let runs = crews.len() as f64 * f64::from(args.rounds + u32::from(args.is_checked()));
    progress.plan(shapes.iter().map(|shape| work(bytes(shape)) * runs).sum());
    for (number, shape) in shapes.iter().enumerate() {
        let bytes = bytes(shape);
        progress.say(format!("{} of {}", spec.operation.name(), show_memory(bytes)));
        let found = one_size(args, crews, *shape, number as u64, || progress.did(work(bytes)))
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

/// The part of a run of so many bytes in the work: even the smallest takes some time.
fn work(bytes: u64) -> f64 {
    (bytes + (1 << 20)) as f64
}

/// What the means of a run that ended early are of.
fn partial(done: usize, all: usize) -> Option<String> {
    let note = || {
        format!("the run ended early: {done} of {all} sizes were measured, and means are of these")
    };
    (done > 0).then(note)
}

/// For each crew the times of one operation, and how many elements are wrong.
type Found = Vec<(Vec<f64>, Option<u64>)>;

fn one_size(
    args: &Args,
    crews: &mut [Crew<'_>],
    shape: Shape,
    number: u64,
    did_run: impl Fn(),
) -> Result<Found, Fault> {
    let mut found: Found = crews.iter().map(|_| (Vec::new(), None)).collect();
    for round in 0..args.rounds {
        let mut order: Vec<usize> = (0..crews.len()).collect();
        // Neither is always the one that comes after the other.
        if round % 2 == 1 {
            order.reverse();
        }
        for crew in order {
            let seed = number * 1000 + u64::from(round);
            let times = [args.warmup, args.iterations];
            let seconds = crews[crew].run(shape, times, seed)?;
            let mean = seconds.iter().sum::<f64>() / seconds.len() as f64;
            found[crew].0.push(mean / f64::from(args.iterations) * 1e6);
            did_run();
        }
    }
    if args.is_checked() {
        for (crew, found) in crews.iter_mut().zip(&mut found) {
            found.1 = Some(crew.check(shape, u64::MAX - number)?);
            did_run();
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_ended_early_says_what_its_means_are_of() {
        let note = partial(2, 31).unwrap();
        assert!(note.contains("2 of 31 sizes were measured"), "{note}");
        assert_eq!(partial(0, 31), None, "there are no figures then");
    }
}
