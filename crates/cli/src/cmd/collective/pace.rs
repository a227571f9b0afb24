//! How long what is left takes, by what the sizes before it took.

use std::time::Duration;

use polyrail_collective::{Shape, Spec};

use super::args::Args;

/// How long an operation of a crew takes: each one some time, and each byte a little more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Pace {
    each_s: f64,
    bytes_per_s: f64,
}

/// What an operation is asked for, and how often.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    spec: Spec,
    /// Of a round, those before the clock runs included.
    operations: u32,
    rounds: u32,
    is_checked: bool,
}

impl Pace {
    /// As long as nothing was measured. `link_bytes_per_s`: what a rank's links carry, where that is known.
    pub(crate) fn usual(spec: &Spec, link_bytes_per_s: Option<f64>) -> Self {
        // Ranks of one host share its CPUs.
        let each = link_bytes_per_s.unwrap_or(HOST_BYTES_PER_S / spec.ranks as f64);
        let bytes_per_s = each / spec.operation.bus_factor(spec.ranks);
        Self { each_s: STEP_S * spec.ranks as f64, bytes_per_s }
    }

    /// What an operation of so many bytes took.
    pub(crate) fn learn(&mut self, bytes: u64, seconds: f64) {
        let for_bytes_s = bytes as f64 / self.bytes_per_s;
        if for_bytes_s < self.each_s {
            self.each_s = seconds;
        } else {
            let at_least_s = seconds / 2.0;
            self.bytes_per_s = bytes as f64 / (seconds - self.each_s).max(at_least_s);
        }
    }

    fn operation_s(&self, bytes: u64) -> f64 {
        self.each_s + bytes as f64 / self.bytes_per_s
    }
}

impl Work {
    pub(crate) fn new(args: &Args, spec: Spec) -> Self {
        let (operations, rounds) = (args.warmup + args.iterations, args.rounds);
        Self { spec, operations, rounds, is_checked: args.is_checked() }
    }

    pub(crate) fn bytes(&self, shape: Shape) -> u64 {
        self.spec.operation.bytes(shape, self.spec.element) as u64
    }

    /// A round of a crew.
    pub(crate) fn round(&self, shape: Shape, pace: &Pace) -> Duration {
        let bytes = self.bytes(shape);
        let run_s = f64::from(self.operations) * pace.operation_s(bytes);
        Duration::from_secs_f64(run_s + self.memory_s(bytes))
    }

    /// One more operation, of which every element is compared.
    pub(crate) fn check(&self, shape: Shape, pace: &Pace) -> Duration {
        let bytes = self.bytes(shape);
        Duration::from_secs_f64(pace.operation_s(bytes) + 2.0 * self.memory_s(bytes))
    }

    /// Sizes of all crews.
    pub(crate) fn all(&self, shapes: &[Shape], paces: &[Pace]) -> Duration {
        let of = |shape: &Shape, pace: &Pace| {
            let check = if self.is_checked { self.check(*shape, pace) } else { Duration::ZERO };
            self.round(*shape, pace) * self.rounds + check
        };
        shapes.iter().flat_map(|shape| paces.iter().map(move |pace| of(shape, pace))).sum()
    }

    /// All ranks fill their inputs, and often on one host.
    fn memory_s(&self, bytes: u64) -> f64 {
        self.spec.ranks as f64 * bytes as f64 / MEMORY_BYTES_PER_S
    }
}

/// A message from rank to rank.
const STEP_S: f64 = 50e-6;
const HOST_BYTES_PER_S: f64 = 3e9;
const MEMORY_BYTES_PER_S: f64 = 1.5e9;

#[cfg(test)]
mod tests {
    use polyrail_collective::{Element, Operation};

    use super::*;

    fn spec() -> Spec {
        let (operation, element) = (Operation::AllReduce, Element::ALL[0]);
        Spec { rank: 0, ranks: 4, channels: 4, operation, element, max_bytes: 64 << 20 }
    }

    fn is_about(found: f64, wanted: f64) -> bool {
        (found / wanted - 1.0).abs() < 0.01
    }

    #[test]
    fn large_sizes_are_not_taken_for_as_short_as_the_small_ones_before_them() {
        let spec = spec();
        // Two rails of 1 Gbit/s: an all_reduce of 64 MiB sends 1.5 times as much from each of four ranks.
        let mut pace = Pace::usual(&spec, Some(250e6));
        let large_s = 1.5 * f64::from(64 << 20) / 250e6;
        assert!(is_about(pace.operation_s(64 << 20), large_s));
        // Slow small ones say nothing of the bytes, and slow large ones nothing of the messages.
        pace.learn(8, 1e-3);
        assert!(
            is_about(pace.operation_s(8), 1e-3) && is_about(pace.operation_s(64 << 20), large_s)
        );
        pace.learn(16 << 20, 1e-3 + large_s / 2.0);
        assert!(is_about(pace.operation_s(8), 1e-3));
        assert!(is_about(pace.operation_s(64 << 20), 2.0 * large_s));
    }

    #[test]
    fn all_that_a_size_takes_is_in_it() {
        let spec = spec();
        let work = Work { spec, operations: 25, rounds: 3, is_checked: true };
        let shape = spec.operation.shape(64 << 20, spec.element, spec.ranks);
        let pace = Pace::usual(&spec, Some(250e6));
        let (one_s, filled_s) = (pace.operation_s(64 << 20), 4.0 * f64::from(64 << 20) / 1.5e9);
        let wanted = 3.0 * (25.0 * one_s + filled_s) + one_s + 2.0 * filled_s;
        assert!(is_about(work.all(&[shape], &[pace]).as_secs_f64(), wanted));
        assert!(is_about(work.all(&[shape; 2], &[pace; 2]).as_secs_f64(), 4.0 * wanted));
        let unchecked = Work { is_checked: false, ..work };
        assert_eq!(unchecked.all(&[shape], &[pace]), unchecked.round(shape, &pace) * 3);
    }
}
