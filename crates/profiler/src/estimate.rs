//! How long a plan takes, before anything is known of the machine.

use std::time::Duration;

use polyrail_profile::{Configuration, PathKind, Plan, Step};

use crate::run::WARM_TIME;

/// What one transfer takes on a path at least, and how fast it is, to the order.
fn rates(path: PathKind) -> (f64, f64) {
    match path {
        // With trains of gated ones.
        PathKind::CopyEngine | PathKind::Kernel => (300e-6, 300e9),
        PathKind::Nccl => (100e-6, 300e9),
        PathKind::HostMemory | PathKind::SharedMemory => (2e-6, 8e9),
        PathKind::Tcp | PathKind::HostStaged => (60e-6, 2e9),
    }
}

/// Transfers that a measurement is worth, streams and verification included, per transfer that is
/// bound by size, and per one that is not.
const LARGE_TRANSFERS: f64 = 8.0;
const SMALL_TRANSFERS: f64 = 16.0;

/// About how long one step takes, in seconds.
pub(crate) fn step_s(configuration: &Configuration, step: &Step) -> f64 {
    let (least_s, bytes_per_s) = rates(configuration.path);
    let size_s = configuration.size_bytes as f64 / bytes_per_s;
    let one_s = least_s + size_s;
    let warm_s = (f64::from(step.warmups) * one_s).min(WARM_TIME.as_secs_f64());
    warm_s + SMALL_TRANSFERS * least_s + LARGE_TRANSFERS * size_s
}

/// About how long the steps take.
pub fn estimate(plan: &Plan, steps: &[Step]) -> Duration {
    let known =
        steps.iter().filter_map(|step| Some((plan.configuration(step.configuration)?, step)));
    Duration::from_secs_f64(known.map(|(configuration, step)| step_s(configuration, step)).sum())
}

#[cfg(test)]
mod tests {
    use polyrail_profile::{Endpoint, EndpointKind, PlanBuilder};

    use super::*;

    #[test]
    fn the_default_plan_of_a_host_is_minutes_and_that_of_four_gpus_too() {
        let node = |_| Endpoint {
            rank: 0,
            kind: EndpointKind::Host,
            name: "x".into(),
            host: "x".into(),
            device: "x".into(),
        };
        let host = PlanBuilder::new((0..2).map(node)).path(PathKind::Tcp).repetitions(3);
        let host = host.build().unwrap();
        let gpus = PlanBuilder::new((0..4).map(node)).path(PathKind::CopyEngine).build().unwrap();
        for plan in [host, gpus] {
            let expected = estimate(&plan, &plan.steps()).as_secs();
            assert!((5..300).contains(&expected), "{expected} s");
        }
    }
}
