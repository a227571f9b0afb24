use clap::Parser;

use super::super::direct::Told;
use super::super::plan::{Grid, Pattern};
use super::super::report::Tally;
use super::*;

/// The options of a mesh without those of the other commands.
#[derive(clap::Parser)]
struct Parsed {
    #[command(flatten)]
    args: Args,
}

/// A worker that prints these messages and is killed.
fn killed_after(told: &[Told]) -> Command {
    let lines = told.iter().map(|told| serde_json::to_string(told).unwrap());
    let mut command = Command::new("sh");
    command.args(["-c", r#"printf '%s\n' "$@"; kill -KILL $$"#, "sh"]).args(lines);
    command
}

#[test]
fn what_a_worker_told_before_it_was_killed_is_in_the_report() {
    let args = Parsed::parse_from(["mesh", "--layout", "one,per-gpu"]).args;
    let place = Place::Here { node: Some(0), nodes: 2, rendezvous: String::new() };
    let mut report = blank(&args, &place);
    let grid = Grid { nodes: 2, endpoints: 1, layout: Layout::One };
    let pattern = |pattern| Told::Pattern(Box::new(Tally::new(grid, 1, 1).finish(pattern, &[])));
    let told = [
        Told::Nodes(Vec::new()),
        Told::Doing("layout one: pairwise, step 1 of 2".into()),
        pattern(Pattern::Pairwise),
        Told::Spent(Duration::from_secs(1)),
        pattern(Pattern::Rotation),
        Told::Doing("layout one: all, step 1 of 1".into()),
    ];
    let mut progress = None;
    let mut party = Party { workers: Workers::default(), members: Vec::new() };
    let mut heard = Heard {
        report: &mut report,
        layout: Layout::One,
        processes: 2,
        progress: &mut progress,
        left: Duration::from_secs(10),
        end: None,
    };
    party.start("node0".into(), killed_after(&told)).unwrap();
    let ended = party.finish(&mut heard, &Interrupt::default());
    let text = ended.unwrap_err().message;
    assert!(text.starts_with("the process of node0 ended before it told its result"), "{text}");
    let [layout] = report.layouts.as_slice() else { panic!("{report:?}") };
    let patterns: Vec<Pattern> = layout.patterns.iter().map(|one| one.pattern).collect();
    assert_eq!(patterns, [Pattern::Pairwise, Pattern::Rotation]);
}

#[test]
fn the_time_left_is_known_before_the_first_step_and_the_first_worker_forges_no_lines() {
    let args = Parsed::parse_from(["mesh"]).args;
    let place = Place::Here { node: Some(0), nodes: 2, rendezvous: String::new() };
    let mut report = blank(&args, &place);
    let failed = Fault { code: 0, ..Fault::environment("gone\npolyrail: all is well") };
    let mut progress = None;
    let mut party = Party { workers: Workers::default(), members: Vec::new() };
    let mut heard = Heard {
        report: &mut report,
        layout: Layout::One,
        processes: 2,
        progress: &mut progress,
        left: Duration::from_secs(3000),
        end: None,
    };
    let told = [Told::Nodes(Vec::new()), Told::End(Some(failed))];
    party.start("node0".into(), killed_after(&told)).unwrap();
    let fault = party.finish(&mut heard, &Interrupt::default()).unwrap_err();
    assert_eq!((fault.code, fault.cause), (exit::PEER, Cause::Ended));
    assert_eq!(fault.message, "gone\\u000apolyrail: all is well");
    let line = progress.unwrap().line();
    assert!(line.contains(", about ") && line.ends_with(" left"), "{line}");
}

#[test]
fn each_pattern_of_each_layout_has_its_part_of_the_plan() {
    let options = ["mesh", "--warmup", "50ms", "--time", "200ms", "--rounds", "3"];
    let args = Parsed::parse_from(options).args;
    // Six pairs one by one, two turns, and all at once.
    let step = Duration::from_millis(650);
    assert_eq!(args.planned(3, Layout::One), step * 9);
    assert_eq!(args.planned(3, Layout::PerGpu), step * 9);
}
