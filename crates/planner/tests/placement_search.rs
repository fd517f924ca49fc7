//! Tests that the search of `delay` finds good placements where it does not try all.

#[allow(dead_code)]
#[path = "common/networks.rs"]
mod networks;

use myelin_planner::placement::place;
use myelin_spec::PlacementAlgorithm::{Delay, LoadBalancingLeastConnections, Optimal};
use networks::{Drawn, check, drawn_with};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

/// Above this number of placements, `delay` searches with a beam and moves.
const SEARCHED_ALL: usize = 8192;

/// Where `delay` does not try all placements, and `optimal` still does. All runs draw the same
/// networks, so the figures are those of `docs/internals/placement.md`.
#[test]
fn the_search_of_delay_comes_near_to_the_best() {
    let mut runner = TestRunner::deterministic();
    let networks = drawn_with(8..=9, 5..=5);
    let mut ratios = Vec::new();
    for _ in 0..500 {
        let mut drawn = networks.new_tree(&mut runner).unwrap().current();
        let Drawn { network, request } = &mut drawn;
        request
            .functions
            .iter_mut()
            .for_each(|function| function.node = None);
        assert!(network.nodes.len().pow(5) > SEARCHED_ALL);
        match [Optimal, Delay].map(|algorithm| place(network, request, algorithm, 0)) {
            [Ok(optimal), Ok(delay)] => {
                check(&drawn, &delay);
                assert!(optimal.delay_ns <= delay.delay_ns);
                ratios.push(delay.delay_ns as f64 / optimal.delay_ns as f64);
            }
            [Ok(_), Err(refusal)] => panic!("{refusal}: {drawn:?}"),
            [Err(_), delay] => assert!(delay.is_err()),
        }
    }
    ratios.sort_unstable_by(f64::total_cmp);
    let at = |parts: usize| ratios[(ratios.len() - 1) * parts / 100];
    println!(
        "{} networks: {} {} {} {}",
        ratios.len(),
        at(50),
        at(90),
        at(99),
        at(100)
    );
    assert!(ratios.len() > 300, "{}", ratios.len());
    assert!(at(90) < 1.001, "{}", at(90));
    assert!(at(99) <= 1.25 && at(100) <= 2.0, "{} {}", at(99), at(100));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// In networks that are too large for `optimal` too.
    #[test]
    fn delay_is_never_worse_than_lblc(drawn in drawn_with(6..=24, 5..=9), seed: u64) {
        let [lblc, delay] = [LoadBalancingLeastConnections, Delay].map(|algorithm| place(&drawn.network, &drawn.request, algorithm, seed));
        for placement in [&lblc, &delay].into_iter().flatten() {
            check(&drawn, placement);
        }
        match (lblc, delay) {
            (Ok(lblc), Ok(delay)) => prop_assert!(delay.delay_ns <= lblc.delay_ns),
            (Ok(_), Err(refusal)) => prop_assert!(false, "refused: {}", refusal),
            (Err(_), _) => {}
        }
    }
}
