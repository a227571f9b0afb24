//! Answer of `--fit`: whether CPUs and memory suffice for NICs of given rates.

use polyrail_report::{Fit, FitEnd, Fits, Spread, show_gb_per_s};

use crate::cmd::bench::options::FitRates;

/// CPU time of one end for one size in one direction.
#[derive(Clone, Debug)]
pub(crate) struct Cost {
    /// Number of the end. Both ends on one machine have the same number.
    pub(crate) end: usize,
    pub(crate) host: String,
    pub(crate) sends: bool,
    pub(crate) size_bytes: u64,
    /// Cost in each round, in CPU seconds per 10^9 bytes.
    pub(crate) per_gb: Vec<f64>,
    pub(crate) cpus_allowed: usize,
    /// Rate of plain copies of memory, in GB/s of payload.
    pub(crate) memory_gb_per_s: Option<f64>,
}

/// Returns the answer, or `None` without costs. With `one_host` the copies of memory are those of both ends together.
pub(crate) fn fit(asked: &FitRates, costs: &[Cost], one_host: bool) -> Option<Fit> {
    let largest = costs.iter().map(|cost| cost.size_bytes).max()?;
    let merged = merged(costs, largest);
    // Count the rounds of one pass: two passes of one round each give no range.
    let of_largest = costs.iter().filter(|cost| cost.size_bytes == largest);
    let rounds = of_largest.map(|cost| cost.per_gb.len()).min()?;
    let ends: Vec<FitEnd> = merged.iter().filter_map(|cost| cost.end_for(asked)).collect();
    let verdict = |end: &FitEnd| Verdict::of(end, asked, one_host);
    let (answer, because) = if rounds < 2 {
        (Fits::Undecided, "one round shows no range: give --rounds 5".to_owned())
    } else {
        // The deciding end comes first: a no, then an open answer, then the greatest share of the CPUs.
        let worst = ends.iter().max_by(|a, b| {
            let rank = |end: &FitEnd| (verdict(end).rank(), part(end));
            let ((a, a_part), (b, b_part)) = (rank(a), rank(b));
            a.cmp(&b).then(a_part.total_cmp(&b_part))
        })?;
        let verdict = verdict(worst);
        (verdict.answer(), verdict.because(worst, !one_host))
    };
    Some(Fit {
        asked: asked.text.clone(),
        asked_gbit_per_s: asked.gbit_per_s(),
        answer,
        because,
        ends,
        pays_from_bytes: pays_from(costs),
    })
}

/// Answers for the CPUs and the memory of an end.
#[derive(Clone, Copy)]
struct Verdict {
    cpus: Fits,
    memory: Fits,
}

impl Verdict {
    fn of(end: &FitEnd, asked: &FitRates, one_host: bool) -> Self {
        let (needed, allowed) = (end.cpus_needed, end.cpus_allowed as f64);
        let cpus = match needed {
            _ if needed.max <= YES_PART * allowed => Fits::Yes,
            _ if needed.min > allowed => Fits::No,
            _ => Fits::Undecided,
        };
        // One end alone makes half of the copies, and reaches twice the rate at most.
        let most = if one_host { 2.0 } else { 1.0 };
        let memory = match end.memory_gbit_per_s {
            Some(memory) if memory * most < asked.gbit_per_s() => Fits::No,
            Some(memory) if memory >= YES_MEMORY * asked.gbit_per_s() => Fits::Yes,
            _ => Fits::Undecided,
        };
        Self { cpus, memory }
    }

    fn answer(self) -> Fits {
        match [self.cpus, self.memory] {
            [Fits::No, _] | [_, Fits::No] => Fits::No,
            [Fits::Yes, Fits::Yes] => Fits::Yes,
            _ => Fits::Undecided,
        }
    }

    fn rank(self) -> u8 {
        match self.answer() {
            Fits::Yes => 0,
            Fits::Undecided => 1,
            Fits::No => 2,
        }
    }

    fn because(self, end: &FitEnd, names_host: bool) -> String {
        let needed = end.cpus_needed;
        let doing = if end.way == SENDS { "sending" } else { "receiving" };
        let host = if names_host { format!(" at {}", end.host) } else { String::new() };
        let [middle, low, high] = [needed.median, needed.min, needed.max].map(show_cpus);
        let allowed = end.cpus_allowed;
        let cpus = format!("{doing}{host} takes {middle} CPUs ({low} to {high}) of {allowed}");
        let memory = end.memory_gbit_per_s.map(show_gbit);
        let reach = format!("copies of memory{host} reach {}", memory.clone().unwrap_or_default());
        match (self.answer(), self.cpus, self.memory) {
            (Fits::No, Fits::No, _) | (Fits::Yes, ..) => cpus,
            (Fits::No, ..) => reach,
            (_, Fits::Undecided, _) => {
                format!(
                    "{cpus}: yes is up to {}, no is above {allowed}",
                    show_cpus(YES_PART * allowed as f64)
                )
            }
            _ if memory.is_none() => format!("{cpus}; copies of memory{host} were not measured"),
            _ => format!("{reach}, which is close to the rate"),
        }
    }
}

impl Cost {
    fn end_for(&self, asked: &FitRates) -> Option<FitEnd> {
        let cost = Spread::of(self.per_gb.iter().copied())?;
        let gb_per_s = asked.gbit_per_s() / 8.0;
        let needed = |per_gb: f64| per_gb * gb_per_s;
        Some(FitEnd {
            way: if self.sends { SENDS } else { RECEIVES }.to_owned(),
            host: self.host.clone(),
            size_bytes: self.size_bytes,
            cpu_seconds_per_gb: cost,
            cpus_needed: Spread {
                median: needed(cost.median),
                min: needed(cost.min),
                max: needed(cost.max),
            },
            cpus_allowed: self.cpus_allowed,
            most_gbit_per_s: self.cpus_allowed as f64 / cost.median.max(f64::MIN_POSITIVE) * 8.0,
            memory_gbit_per_s: self.memory_gb_per_s.map(|memory| memory * 8.0),
        })
    }
}

/// Returns the share of its CPUs that an end needs.
fn part(end: &FitEnd) -> f64 {
    end.cpus_needed.median / end.cpus_allowed as f64
}

/// Returns the costs of a size. Costs of the same end and direction are merged; senders come first.
fn merged(costs: &[Cost], size: u64) -> Vec<Cost> {
    let mut ends: Vec<Cost> = Vec::new();
    for cost in costs.iter().filter(|cost| cost.size_bytes == size) {
        match ends.iter_mut().find(|end| (end.end, end.sends) == (cost.end, cost.sends)) {
            Some(end) => {
                end.per_gb.extend(&cost.per_gb);
                let both = end.memory_gb_per_s.into_iter().chain(cost.memory_gb_per_s);
                end.memory_gb_per_s = both.reduce(f64::max);
            }
            None => ends.push(cost.clone()),
        }
    }
    ends.sort_by_key(|end| (!end.sends, end.end));
    ends
}

/// Returns the smallest size from which each end needs hardly more CPU time per byte than at the largest size.
fn pays_from(costs: &[Cost]) -> Option<u64> {
    let mut sizes: Vec<u64> = costs.iter().map(|cost| cost.size_bytes).collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    sizes.dedup();
    let (largest, _) = sizes.split_first().filter(|(_, smaller)| !smaller.is_empty())?;
    let medians = |size: u64| {
        let of = |cost: &Cost| Spread::of(cost.per_gb.iter().copied()).map(|it| it.median);
        merged(costs, size).iter().map(of).collect::<Option<Vec<f64>>>()
    };
    let best = medians(*largest)?;
    let pays = |size: &&u64| {
        let own = medians(**size).unwrap_or_default();
        own.len() == best.len() && own.iter().zip(&best).all(|(own, best)| *own <= PAYS * best)
    };
    sizes.iter().take_while(pays).last().copied()
}

/// Formats a number of CPUs with a few digits.
pub(crate) fn show_cpus(cpus: f64) -> String {
    match cpus {
        _ if cpus >= 9.95 => format!("{cpus:.0}"),
        _ if cpus >= 0.995 => format!("{cpus:.1}"),
        _ => format!("{cpus:.2}"),
    }
}

/// Formats a rate such as `39.4 Gbit/s`.
pub(crate) fn show_gbit(gbit_per_s: f64) -> String {
    format!("{} Gbit/s", show_gb_per_s(gbit_per_s))
}

const SENDS: &str = "sends";
const RECEIVES: &str = "receives";
/// Maximum share of the CPUs that may be needed for a yes: other programs run, too.
const YES_PART: f64 = 0.8;
const YES_MEMORY: f64 = 1.2;
const PAYS: f64 = 1.25;

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(size_bytes: u64, sends: bool, per_gb: &[f64]) -> Cost {
        Cost {
            end: 0,
            host: "a".into(),
            sends,
            size_bytes,
            per_gb: per_gb.to_vec(),
            cpus_allowed: 10,
            memory_gb_per_s: PLENTY,
        }
    }

    const PLENTY: Option<f64> = Some(100.0);

    fn asked() -> FitRates {
        FitRates::parse("4x100gbit").unwrap()
    }

    /// Returns the answer and its reason for a receiver, with 50 GB/s requested and 10 CPUs available.
    fn told(per_gb: &[f64], memory: Option<f64>, one_host: bool) -> (Fits, String) {
        let receives = Cost { memory_gb_per_s: memory, ..cost(1 << 20, false, per_gb) };
        let costs = [cost(1 << 20, true, &[0.02, 0.02]), receives];
        let fit = fit(&asked(), &costs, one_host).unwrap();
        (fit.answer, fit.because)
    }

    #[test]
    fn the_highest_need_must_leave_cpus_over_and_the_lowest_decides_a_no() {
        let is = |answer, text: &str| (answer, text.to_owned());
        let yes = is(Fits::Yes, "receiving takes 7.5 CPUs (7.0 to 8.0) of 10");
        assert_eq!(told(&[0.14, 0.15, 0.16], PLENTY, true), yes);
        let open = "receiving takes 7.5 CPUs (7.0 to 8.5) of 10: yes is up to 8.0, no is above 10";
        assert_eq!(told(&[0.14, 0.15, 0.17], PLENTY, true), is(Fits::Undecided, open));
        let no = is(Fits::No, "receiving at a takes 14 CPUs (12 to 17) of 10");
        assert_eq!(told(&[0.24, 0.28, 0.34], PLENTY, false), no);
        assert_eq!(told(&[0.20, 0.28, 0.34], PLENTY, true).0, Fits::Undecided, "10 CPUs are 10");
        let one = is(Fits::Undecided, "one round shows no range: give --rounds 5");
        assert_eq!(told(&[0.9], PLENTY, true), one.clone());
        let pass = [true, false].map(|sends| cost(8, sends, &[0.02]));
        let two_passes = fit(&asked(), &[pass.clone(), pass].concat(), true).unwrap();
        assert_eq!((two_passes.answer, two_passes.because), one);
    }

    #[test]
    fn copies_of_memory_may_be_the_limit_and_two_ends_on_one_host_share_them() {
        let few = [0.02, 0.02];
        assert_eq!(told(&few, Some(60.0), false).0, Fits::Yes);
        let close = told(&few, Some(59.0), false);
        assert_eq!(close.0, Fits::Undecided);
        assert_eq!(close.1, "copies of memory at a reach 472 Gbit/s, which is close to the rate");
        let no = (Fits::No, "copies of memory at a reach 392 Gbit/s".to_owned());
        assert_eq!(told(&few, Some(49.0), false), no);
        assert_eq!(told(&few, Some(49.0), true).0, Fits::Undecided);
        assert_eq!(told(&few, Some(24.9), true).0, Fits::No);
        let unknown = "receiving at a takes 1.0 CPUs (1.0 to 1.0) of 10; copies of memory at a were not measured";
        assert_eq!(told(&few, None, false), (Fits::Undecided, unknown.to_owned()));
        // A lack of CPUs is reported first.
        assert!(told(&[0.3, 0.3], Some(1.0), true).1.starts_with("receiving takes 15 CPUs"));
    }

    #[test]
    fn both_passes_of_one_host_count_for_its_ends_and_two_hosts_have_two_each() {
        let both = [
            cost(8, true, &[0.1, 0.2]),
            cost(8, false, &[0.3, 0.3]),
            cost(8, false, &[0.4, 0.5]),
            cost(8, true, &[0.3, 0.4]),
        ];
        let ends = fit(&asked(), &both, true).unwrap().ends;
        let ways: Vec<_> = ends.iter().map(|end| &*end.way).collect();
        assert_eq!(ways, ["sends", "receives"]);
        assert_eq!(ends[0].cpu_seconds_per_gb, Spread { median: 0.25, min: 0.1, max: 0.4 });
        assert_eq!(ends[0].cpus_needed, Spread { median: 12.5, min: 5.0, max: 20.0 });
        assert_eq!(ends[0].most_gbit_per_s, 320.0);
        let there = |cost: &Cost| Cost { end: 1, host: "b".into(), ..cost.clone() };
        let two = [both[0].clone(), there(&both[1]), both[2].clone(), there(&both[3])];
        let ends = fit(&asked(), &two, false).unwrap().ends;
        let who: Vec<_> = ends.iter().map(|end| (&*end.host, &*end.way)).collect();
        assert_eq!(who, [("a", "sends"), ("b", "sends"), ("a", "receives"), ("b", "receives")]);
        assert_eq!(fit(&asked(), &[], true), None);
    }

    #[test]
    fn a_size_pays_if_it_and_all_larger_ones_cost_hardly_more_than_the_largest() {
        let pays = |medians: &[f64]| {
            let costs = medians.iter().zip(1..).map(|(per_gb, size)| cost(size, true, &[*per_gb]));
            pays_from(&costs.collect::<Vec<_>>())
        };
        assert_eq!(pays(&[1.0, 0.5, 0.25, 0.2]), Some(3));
        assert_eq!(pays(&[0.2, 0.5, 0.2, 0.2]), Some(3));
        assert_eq!(pays(&[0.5, 0.4, 0.3, 0.2]), Some(4));
        assert_eq!(pays(&[0.2]), None);
        assert_eq!(pays(&[]), None);
    }
}
