use super::*;

fn endpoints(count: usize) -> Vec<Endpoint> {
    let endpoint = |number: usize| Endpoint {
        rank: 0,
        kind: EndpointKind::Gpu,
        name: format!("gpu{number}"),
        host: "node".into(),
        device: format!("0000:{number:02x}:00.0"),
    };
    (0..count).map(endpoint).collect()
}

fn plan() -> Plan {
    PlanBuilder::new(endpoints(4)).path(PathKind::CopyEngine).build().unwrap()
}

#[test]
fn four_gpus_have_twelve_pairs_of_thirty_one_sizes() {
    let plan = plan();
    assert_eq!(plan.configurations.len(), 12 * 31);
    assert_eq!(plan.steps().len(), 12 * 31 * 10);
    assert_eq!(plan.configurations[0].size_bytes, 1);
    assert_eq!(plan.configurations[30].size_bytes, 1 << 30);
    assert_eq!(plan.bytes(), 12 * 10 * ((1 << 31) - 1));
}

#[test]
fn the_order_never_changes() {
    // Other programs compute this order from the description in docs/profile-format.md.
    let steps = plan().steps();
    let first: Vec<(u32, u32)> =
        steps.iter().take(4).map(|step| (step.configuration, step.repetition)).collect();
    assert_eq!(plan().order_fnv1a64, ORDER_OF_FOUR_GPUS);
    assert_eq!(first, FIRST_OF_FOUR_GPUS);
}

#[test]
fn warm_ups_come_before_the_first_transfer_of_each_configuration() {
    let steps = plan().steps();
    assert_eq!(steps.iter().filter(|step| step.warmups == 5).count(), 12 * 31);
    let mut seen = HashSet::new();
    assert!(steps.iter().all(|step| (step.warmups == 5) == seen.insert(step.configuration)));
}

#[test]
fn what_remains_keeps_its_place_in_the_order_and_warms_up_again() {
    let plan = plan();
    let steps = plan.steps();
    let done = steps[..1_000].iter().map(|step| (step.configuration, step.repetition)).collect();
    let left = plan.remaining(&done);
    assert_eq!(left.len(), steps.len() - 1_000);
    assert_eq!((left[0].order, left[0].warmups), (1_000, 5));
}

#[test]
fn the_sentinel_comes_in_between_and_counts_on() {
    let plan = PlanBuilder::new(endpoints(2))
        .path(PathKind::Tcp)
        .sizes([8, 64])
        .repetitions(3)
        .sentinel_every(4)
        .build()
        .unwrap();
    let steps = plan.steps();
    let sentinels: Vec<&Step> =
        steps.iter().filter(|step| plan.is_sentinel(step.repetition)).collect();
    assert_eq!(steps.len(), 2 * 2 * 3 + sentinels.len());
    assert_eq!(sentinels.iter().map(|step| step.order).collect::<Vec<_>>(), [4, 9]);
    assert_eq!(sentinels.iter().map(|step| step.repetition).collect::<Vec<_>>(), [3, 4]);
}

#[test]
fn refining_adds_only_what_is_new_and_leaves_the_old_order() {
    let mut plan = plan();
    let before = plan.steps();
    let path = PathKind::CopyEngine;
    let added = plan.refine([(0, 1, path, 3_000), (0, 1, path, 4_096), (0, 1, path, 3_000)]);
    assert_eq!(added.unwrap(), 1);
    assert_eq!(plan.steps()[..before.len()], before);
    assert_eq!(plan.steps().len(), before.len() + 10);
    assert!(plan.refine([(0, 9, path, 1)]).is_err());
    assert_eq!(plan.configurations.len(), 12 * 31 + 1, "a refused refinement changes nothing");
}

#[test]
fn names_of_events_say_everything() {
    let plan = plan();
    assert_eq!(plan.event_name(&plan.configurations[20], 0), "p2p_cfg0020_s0d1_sz1048576_r0");
}

#[test]
fn fields_out_of_range_are_named_with_the_range() {
    let build = |builder: PlanBuilder| builder.build().unwrap_err().to_string();
    let new = || PlanBuilder::new(endpoints(2)).path(PathKind::Tcp);
    assert_eq!(build(new().repetitions(0)), "repetitions = `0`; allowed: 1 to 1000000");
    let size = build(new().sizes([0]));
    assert_eq!(size, "configurations[0].size_bytes = `0`; allowed: 1 to 1099511627776");
    let pair = build(new().path_between(PathKind::Nccl, [(1, 1)]));
    assert_eq!(pair, "configurations[62].dst = `1`; allowed: another rank than src");
    assert!(build(new().path(PathKind::Tcp)).contains("configuration 0 is the same"));
    let none = build(PlanBuilder::new(endpoints(1)).path(PathKind::Tcp));
    assert!(none.starts_with("configurations (how many) = `0`"), "{none}");
}

#[test]
fn a_plan_whose_order_was_changed_by_hand_is_refused() {
    let mut plan = plan();
    plan.seed = 43;
    let error = plan.check().unwrap_err().to_string();
    assert!(error.starts_with("order_fnv1a64 = `"), "{error}");
}

#[test]
fn words_are_the_same_in_json_and_in_tables() {
    for (word, path) in PathKind::WORDS {
        assert_eq!(serde_json::to_string(path).unwrap(), format!("\"{word}\""));
    }
    for (word, load) in Load::WORDS {
        assert_eq!(serde_json::to_string(load).unwrap(), format!("\"{word}\""));
    }
}

const ORDER_OF_FOUR_GPUS: &str = "f0a45aaef05f01c5";
const FIRST_OF_FOUR_GPUS: [(u32, u32); 4] = [(173, 2), (161, 1), (92, 6), (191, 5)];
