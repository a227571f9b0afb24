use super::*;
use crate::order::SplitMix64;

const BASE_NS: i64 = 1_700_000_000_000_000_000;

fn clock(id: u32, tick_ns: f64) -> Clock {
    Clock { id, name: format!("c{id}"), kind: "globaltimer".into(), rank: None, tick_ns }
}

/// Offset of a clock that is `offset_ns` behind and whose rate varies around `ppm`.
fn true_offset(at_ns: i64, offset_ns: i64, ppm: f64) -> i64 {
    let seconds = at_ns as f64 / 1e9;
    offset_ns + (ppm * 1e3 * seconds + 40.0 * (seconds / 5.0).sin()).round() as i64
}

fn anchors(id: u32, offset_ns: i64, ppm: f64, tick_ns: i64, rng: &mut SplitMix64) -> Vec<Anchor> {
    let mut anchors = Vec::new();
    for window in 0..20 {
        for probe in 0..30 {
            let at = i64::from(window) * 1_000_000_000 + probe * 5_000;
            let parent = BASE_NS + at;
            let clock_ns = parent - true_offset(at, offset_ns, ppm);
            anchors.push(Anchor {
                clock: id,
                parent: 0,
                window,
                method: AnchorMethod::Bracket,
                parent_before_ns: parent - 200 - rng.below(600) as i64,
                clock_ns: clock_ns - clock_ns.rem_euclid(tick_ns),
                parent_after_ns: parent + 200 + rng.below(600) as i64,
            });
        }
    }
    anchors
}

#[test]
fn the_bound_holds_everywhere_and_is_below_a_microsecond() {
    let mut rng = SplitMix64::new(1);
    let (offset, ppm) = (BASE_NS - 12_345, -24.0);
    let anchors = anchors(1, offset, ppm, 32, &mut rng);
    let alignment = Alignment::fit(&[clock(0, 1.0), clock(1, 32.0)], &anchors).unwrap();
    let fit = alignment.fits().next().unwrap();
    assert!((fit.rate_ppm.unwrap() - ppm).abs() < 1.0, "{:?}", fit.rate_ppm);
    assert!(fit.bound_ns < 1_000.0, "{}", fit.bound_ns);
    for at in (0..19_000_000_000).step_by(7_777_777) {
        let parent = BASE_NS + at;
        let aligned = alignment.to_reference(1, parent - true_offset(at, offset, ppm)).unwrap();
        let error = (aligned.ns - parent).abs() as f64;
        assert!(error <= aligned.uncertainty_ns, "{error} > {}", aligned.uncertainty_ns);
    }
}

#[test]
fn the_tick_of_a_coarse_clock_is_in_the_bound() {
    let anchors = anchors(1, 500, 3.0, 1_024, &mut SplitMix64::new(2));
    let alignment = Alignment::fit(&[clock(0, 1.0), clock(1, 1_024.0)], &anchors).unwrap();
    let at = 10_400_000_000;
    let stamp = BASE_NS + at - true_offset(at, 500, 3.0);
    let aligned = alignment.to_reference(1, stamp).unwrap();
    let error = (aligned.ns - BASE_NS - at).abs() as f64;
    assert!(error <= aligned.uncertainty_ns, "{error} > {}", aligned.uncertainty_ns);
}

#[test]
fn a_clock_of_another_host_is_aligned_through_its_host() {
    let mut rng = SplitMix64::new(3);
    let mut all = anchors(1, 1_000_000, 5.0, 1, &mut rng);
    let gpu = Anchor {
        clock: 2,
        parent: 1,
        window: 0,
        method: AnchorMethod::Edge,
        parent_before_ns: BASE_NS - 100,
        clock_ns: 0,
        parent_after_ns: BASE_NS + 100,
    };
    all.push(gpu);
    let clocks = [clock(0, 1.0), clock(1, 1.0), clock(2, 1_024.0)];
    let alignment = Alignment::fit(&clocks, &all).unwrap();
    let aligned = alignment.to_reference(2, 0).unwrap();
    assert!((aligned.ns - BASE_NS - 1_000_000).abs() < 2_000, "{}", aligned.ns - BASE_NS);
    assert!(aligned.uncertainty_ns > 100.0);
}

#[test]
fn triangles_close_when_the_alignment_is_right_and_open_when_it_is_not() {
    let mut rng = SplitMix64::new(4);
    let mut all = anchors(1, 7_000, -10.0, 32, &mut rng);
    all.extend(anchors(2, -900_000, 20.0, 32, &mut rng));
    let clocks = [clock(0, 1.0), clock(1, 32.0), clock(2, 32.0)];
    let alignment = Alignment::fit(&clocks, &all).unwrap();
    let peer = |shift: i64| {
        let at = 5_000_000_000;
        let parent = BASE_NS + at - true_offset(at, -900_000, 20.0) + shift;
        Anchor {
            clock: 1,
            parent: 2,
            window: 0,
            method: AnchorMethod::Peer,
            parent_before_ns: parent - 700,
            clock_ns: BASE_NS + at - true_offset(at, 7_000, -10.0),
            parent_after_ns: parent + 700,
        }
    };
    let closed = alignment.triangles(&[peer(0)])[0];
    assert!(closed.max_ns <= closed.bound_ns && closed.max_ns < 1_000.0, "{closed:?}");
    let open = alignment.triangles(&[peer(50_000)])[0];
    assert!(open.max_ns > open.bound_ns, "{open:?}");
}

#[test]
fn two_devices_are_compared_directly_where_that_is_closer() {
    let mut rng = SplitMix64::new(5);
    let (first, second) = ((7_000, -10.0), (-900_000, 20.0));
    let mut all = anchors(1, first.0, first.1, 32, &mut rng);
    all.extend(anchors(2, second.0, second.1, 32, &mut rng));
    let clocks = [clock(0, 1.0), clock(1, 32.0), clock(2, 32.0)];
    let over = Alignment::fit(&clocks, &all).unwrap();
    let ticked = |ns: i64| ns - ns.rem_euclid(32);
    let shown = |at: i64, (offset, ppm): (i64, f64)| BASE_NS + at - true_offset(at, offset, ppm);
    for window in 0..20 {
        for probe in 0..8 {
            let at = i64::from(window) * 1_000_000_000 + 200_000 + probe * 4_111;
            let way = 150 + rng.below(400) as i64;
            all.push(Anchor {
                clock: 1,
                parent: 2,
                window,
                method: AnchorMethod::Peer,
                parent_before_ns: ticked(shown(at - way, second)),
                clock_ns: ticked(shown(at, first)),
                parent_after_ns: ticked(shown(at + way, second)),
            });
        }
    }
    let direct = Alignment::fit(&clocks, &all).unwrap();
    for at in (0..19_000_000_000).step_by(77_777_777) {
        let (one, other) = (shown(at + 10_000, first), shown(at, second));
        for (later, truth) in [
            (direct.later((1, one), (2, other)), 10_000.0),
            (direct.later((2, other), (1, one)), -10_000.0),
        ] {
            let (later_ns, bound_ns) = later.unwrap();
            assert!((later_ns - truth).abs() <= bound_ns, "{later_ns} ± {bound_ns}");
            let (_, over_ns) = over.later((1, one), (2, other)).unwrap();
            assert!(bound_ns < over_ns, "{bound_ns} {over_ns}");
        }
    }
    assert_eq!(direct.later((1, 50), (1, 20)).unwrap(), (30.0, 0.0));
    assert!(direct.later((1, 50), (3, 20)).is_err());
}

#[test]
fn clocks_that_cannot_be_compared_are_named() {
    let alignment = Alignment::default();
    assert_eq!(alignment.to_reference(0, 7).unwrap(), Aligned { ns: 7, uncertainty_ns: 0.0 });
    let error = alignment.to_reference(3, 7).unwrap_err().to_string();
    assert!(error.starts_with("clock 3: has no anchors"), "{error}");
    let loose = anchors(1, 0, 0.0, 1, &mut SplitMix64::new(5));
    let error = Alignment::fit(&[clock(0, 1.0)], &loose).unwrap_err().to_string();
    assert_eq!(error, "clock 1: has anchors and is not listed in run.yml");
    let circle: Vec<Anchor> =
        [(1, 2), (2, 1)].map(|(clock, parent)| Anchor { clock, parent, ..loose[0] }).to_vec();
    let error = Alignment::fit(&[clock(1, 1.0), clock(2, 1.0)], &circle).unwrap_err().to_string();
    assert_eq!(error, "clock 1: is its own ancestor");
}

#[test]
fn one_window_is_enough_but_says_how_little_it_knows_later() {
    let one: Vec<Anchor> = anchors(1, 77, 0.0, 1, &mut SplitMix64::new(6))[..30].to_vec();
    let alignment = Alignment::fit(&[clock(0, 1.0), clock(1, 1.0)], &one).unwrap();
    let near = alignment.to_reference(1, BASE_NS).unwrap().uncertainty_ns;
    let far = alignment.to_reference(1, BASE_NS + 1_000_000_000).unwrap().uncertainty_ns;
    assert!(near < 1_000.0 && far > 99_000.0, "{near} {far}");
}
