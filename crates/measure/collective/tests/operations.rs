//! Ranks in threads over the baseline.

use std::thread;
use std::time::{Duration, Instant};

use polyrail_collective::{Element, Operation, Rank, RankError, Spec, baseline, route};
use polyrail_nccl_abi::Handle;

const PATIENCE: Duration = Duration::from_secs(60);

/// Number of wrong elements by size, of all ranks together.
fn wrong(operation: Operation, element: Element, ranks: usize, sizes: &[usize]) -> Vec<u64> {
    let max_bytes = sizes.iter().copied().max().unwrap().max(64);
    let spec = |rank| Spec { rank, ranks, channels: 2, operation, element, max_bytes };
    let listen = |rank| Rank::listen(baseline().unwrap(), spec(rank)).unwrap();
    let (all, handles): (Vec<_>, Vec<_>) = (0..ranks).map(listen).unzip();
    let until = Instant::now() + PATIENCE;
    let work = |mut rank: Rank, handles: Vec<Handle>| {
        rank.connect(&handles, until).unwrap();
        let wrong = |(seed, bytes): (usize, &usize)| {
            let (shape, seed) = (operation.shape(*bytes, element, ranks), seed as u64);
            assert!(rank.run(shape, [1, 2], seed, until).unwrap() > Duration::ZERO);
            rank.check(shape, seed + 100, until).unwrap()
        };
        sizes.iter().enumerate().map(wrong).collect::<Vec<u64>>()
    };
    let routed = all.into_iter().zip(route(&handles, 2));
    let counts: Vec<Vec<u64>> = thread::scope(|scope| {
        let threads: Vec<_> =
            routed.map(|(rank, handles)| scope.spawn(move || work(rank, handles))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    (0..sizes.len()).map(|size| counts.iter().map(|of_rank| of_rank[size]).sum()).collect()
}

#[test]
fn each_operation_is_right_for_2_to_4_ranks_and_odd_sizes() {
    // Less than a block for each rank, a byte too many for it, and more messages than fit at once.
    let sizes = [1, 7, 1000, 65_537, 131_073, 9_000_001];
    for operation in Operation::ALL {
        for ranks in 2..=4 {
            let found = wrong(operation, Element::Uint8, ranks, &sizes);
            assert_eq!(found, [0; 6], "{operation:?}, {ranks} ranks");
        }
        let found = wrong(operation, Element::Float, 3, &[4, 40, 300_004]);
        assert_eq!(found, [0; 3], "{operation:?} of floats");
    }
}

/// Two ranks, and the handles that each connects to.
fn pair() -> ([Rank; 2], Vec<Vec<Handle>>) {
    let spec = |rank| Spec {
        rank,
        ranks: 2,
        channels: 1,
        operation: Operation::AllReduce,
        element: Element::Float,
        max_bytes: 4096,
    };
    let listen = |rank| Rank::listen(baseline().unwrap(), spec(rank)).unwrap();
    let [(one, of_one), (other, of_other)] = [0, 1].map(listen);
    ([one, other], route(&[of_one, of_other], 1))
}

#[test]
fn a_rank_that_does_not_come_or_do_its_part_is_named() {
    let soon = || Instant::now() + Duration::from_millis(50);
    let shape = Operation::AllReduce.shape(4096, Element::Float, 2);
    let ([mut one, _other], handles) = pair();
    assert!(matches!(one.check(shape, 0, soon()), Err(RankError::NotReady)));
    let error = one.connect(&handles[0], soon()).unwrap_err();
    assert_eq!(error.to_string(), "no connection from rank 1");
    assert!(matches!(one.connect(&[], soon()), Err(RankError::Handles { got: 0, wanted: 1 })));

    let ([mut one, mut other], handles) = pair();
    let until = Instant::now() + PATIENCE;
    thread::scope(|scope| {
        scope.spawn(|| one.connect(&handles[0], until).unwrap());
        other.connect(&handles[1], until).unwrap();
    });
    let error = one.check(shape, 0, soon()).unwrap_err();
    assert_eq!(error.to_string(), "message 1 of 2 from rank 1 did not come");
    assert!(matches!(one.check(shape, 0, soon()), Err(RankError::NotReady)), "requests are left");
    let long = Operation::AllReduce.shape(1 << 20, Element::Float, 2);
    assert!(matches!(other.check(long, 0, soon()), Err(RankError::TooLong { room: 4096, .. })));
}
