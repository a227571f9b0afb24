use super::*;

fn fault(text: &str) -> (usize, String, String) {
    match Experiment::parse(text, "x.yml").unwrap_err() {
        ExperimentError::File { line, fault, help, .. } => (line, fault, help.unwrap_or_default()),
        other => panic!("{other}"),
    }
}

#[test]
fn a_file_has_defaults_for_all_but_its_factors() {
    let experiment = Experiment::parse("factors:\n  channels: [1, 2, 4]\n", "dir/x.yml").unwrap();
    assert_eq!(experiment.name, "x");
    assert!(matches!(&experiment.measure, Measure::Bench(words) if words[0] == "--sizes"));
    let let_in = Measure::Bench(vec!["--connect".into(), format!("a:1/pr2-{}", "0f".repeat(32))]);
    assert_eq!(let_in.shown_words(), ["--connect", "a:1/pr2-…"]);
    assert!(!serde_json::to_string(&let_in).unwrap().contains("0f0f"));
    assert_eq!((experiment.blocks, experiment.seed), (64, 42));
    assert_eq!((experiment.precision, experiment.time), (0.02, Duration::from_secs(600)));
    let (plan, looks) = experiment.plan(|_| true).unwrap();
    assert_eq!(plan.cells.len(), 3);
    assert_eq!(looks.most(), 64);
}

#[test]
fn every_part_of_a_file_is_read() {
    let text = "name: all\nabout: everything\ncommand: [run, '--size={size}', '{channels}']\n\
                figure: 'rate ([0-9]+)'\nbetter: lower\nfactors:\n  channels: [1, 2]\n  size: [8, 9]\n  \
                irq: [default, matched, 'map:irq.yml']\n  bindings: [none, matched, 'eth1:1;eth2:2']\n  \
                host_profile: [none, throughput]\nbaseline:\n  channels: 2\nsettings:\n  sockets: 2\n\
                nics: eth1, eth2\ndesign: one-at-a-time\nblocks: 20\ntime: 5min\nprecision: 1.5 %\nseed: 7\n";
    let all = Experiment::parse(text, "x.yml").unwrap();
    assert_eq!(all.nics, ["eth1", "eth2"]);
    assert_eq!(all.factors[0].baseline, 1);
    assert!(all.factors[2].kind.is_of_host() && all.factors[4].kind.is_of_host());
    let (plan, _) = all.plan(|_| true).unwrap();
    assert_eq!(plan.cells.len(), 1 + 1 + 1 + 2 + 2 + 1);
    assert_eq!(all.words_of(&plan, 0), ["run", "--size=8", "2"]);
    let settings = all.settings_of(&plan, 1);
    assert_eq!(
        settings,
        [("sockets", "2"), ("channels", "1")].map(|(a, b)| (a.to_owned(), b.to_owned()))
    );
    let expected = all.expected(&plan, 1);
    assert!(expected.contains(&("channels".to_owned(), 1.into())), "{expected:?}");
}

#[test]
fn wrong_names_and_values_are_named_with_their_line_and_a_remedy() {
    let factors = "factors:\n  channels: [1, 2]\n";
    for (text, line, words, help) in [
        ("factor:\n  a: [1]\n", 1, "`factor` is not known", "did you mean `factors`?"),
        (
            "factors:\n  chanels: [1, 2]\n",
            2,
            "the factor `chanels` is not known",
            "did you mean `channels`?",
        ),
        ("factors:\n  polling: [1, 2]\n", 2, "the factor `polling` is not known", "set spin=off"),
        ("factors:\n  irqs: [1, 2]\n", 2, "the factor `irqs`", "did you mean `irq`?"),
        ("factors:\n  channels:\n    - 1\n    - many\n", 4, "channels = `many`", ""),
        ("factors:\n  irq: [default, mached]\n", 2, "no level `mached`", "did you mean `matched`?"),
        ("factors:\n  bindings: [none, 'eth1:x']\n", 2, "no level `eth1:x`", ""),
        ("factors:\n  channels: [1]\n", 2, "has 1 level; at least 2", ""),
        ("factors:\n  channels: []\n", 2, "has 0 levels; at least 2", ""),
        (&format!("{factors}settings:\n  channels: 4\n"), 4, "`channels` is a factor as well", ""),
        (&format!("{factors}nics: eth1\n"), 3, "with a factor irq or host_profile", ""),
        ("factors:\n  channels: [1, 1]\n", 2, "`1` twice", ""),
        ("factors:\n  channels: 1\n", 2, "must be a list", ""),
        ("name: x\n", 1, "`factors` is missing", ""),
        ("", 1, "empty", ""),
        ("factors: [\n", 2, "is not YAML", ""),
        (&format!("{factors}blocks: 0\n"), 3, "blocks = `0`; allowed: 1 to 400", ""),
        (&format!("{factors}precision: 2\n"), 3, "precision = `2`", ""),
        (&format!("{factors}time: 5 parsecs\n"), 3, "time = `5 parsecs`", ""),
        (&format!("{factors}seed: -1\n"), 3, "seed = `-1`", ""),
        (&format!("{factors}design: all\n"), 3, "design = `all`; allowed: grid", ""),
        (&format!("{factors}better: faster\n"), 3, "better = `faster`", ""),
        (&format!("{factors}figure: /a\n"), 3, "`better` is missing", ""),
        (&format!("{factors}figure: a\nbetter: lower\n"), 3, "has 0 groups", ""),
        (&format!("{factors}command: x\n"), 1, "`figure` is missing", ""),
        (&format!("{factors}command: x\nbench: y\n"), 3, "stands beside `bench`", ""),
        (&format!("{factors}bench: --sizes {{size}}\n"), 3, "`{size}`, which is no factor", ""),
        (&format!("{factors}baseline:\n  channels: 3\n"), 4, "no level of it; allowed: 1, 2", ""),
        (
            &format!("{factors}baseline:\n  chanels: 1\n"),
            4,
            "which is no factor",
            "did you mean `channels`?",
        ),
        (
            &format!("{factors}settings:\n  rail: x\n"),
            4,
            "`rail` is no setting",
            "did you mean `rails`?",
        ),
    ] {
        let (found, fault, remedy) = fault(text);
        assert!(fault.contains(words), "{text}: {fault}");
        assert_eq!(found, line, "{text}: {fault}");
        assert!(remedy.contains(help), "{text}: {remedy}");
    }
}

#[test]
fn levels_that_conflict_and_blocks_that_are_too_few_are_refused_before_anything_runs() {
    let few = Experiment::parse("factors:\n  channels: [1, 2, 4]\nblocks: 3\n", "x.yml").unwrap();
    let error = few.plan(|_| true).unwrap_err();
    assert!(
        error.to_string().contains("blocks = `3` is too few for 2 comparisons; allowed: 8 to"),
        "{error}"
    );
    let text = "factors:\n  progress: [proxy, caller]\n  proxy_layout: [split, merged]\n";
    let error = Experiment::parse(text, "x.yml").unwrap().plan(|_| true).unwrap_err();
    assert!(error.to_string().starts_with("x.yml: the cell progress=caller can't be: "), "{error}");
    assert!(error.help().is_some());
}

#[test]
fn a_name_is_suggested_if_a_third_of_its_letters_or_fewer_differ() {
    assert_eq!(meant("chanls", ["rails", "channels"]).unwrap(), "did you mean `channels`?");
    assert_eq!(meant("chans", ["rails", "channels"]), None);
    assert_eq!(meant("", ["rails"]), None);
}
