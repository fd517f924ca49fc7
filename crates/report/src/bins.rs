//! Bins of a delay histogram. The edges are preferred numbers (ISO 3), because these are round and
//! give bins of equal width on a logarithmic scale.

use myelin_metrics::Distribution;

/// Preferred numbers, finest first: R40, R20, R10, R5, and 1-2-5.
pub(crate) const SERIES: [&[f64]; 5] = [
    &[
        1.0, 1.06, 1.12, 1.18, 1.25, 1.32, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9, 2.0, 2.12, 2.24, 2.36,
        2.5, 2.65, 2.8, 3.0, 3.15, 3.35, 3.55, 3.75, 4.0, 4.25, 4.5, 4.75, 5.0, 5.3, 5.6, 6.0, 6.3,
        6.7, 7.1, 7.5, 8.0, 8.5, 9.0, 9.5,
    ],
    &[
        1.0, 1.12, 1.25, 1.4, 1.6, 1.8, 2.0, 2.24, 2.5, 2.8, 3.15, 3.55, 4.0, 4.5, 5.0, 5.6, 6.3,
        7.1, 8.0, 9.0,
    ],
    &[1.0, 1.25, 1.6, 2.0, 2.5, 3.15, 4.0, 5.0, 6.3, 8.0],
    &[1.0, 1.6, 2.5, 4.0, 6.3],
    &[1.0, 2.0, 5.0],
];
/// Decades of nanoseconds that bins cover: more than a distribution records.
const DECADES: i32 = 12;

/// Delays from `low_ns` to below `high_ns`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bin {
    pub(crate) low_ns: u64,
    pub(crate) high_ns: u64,
    pub(crate) count: u64,
}

/// Returns all bins of a series from the shortest delay to the longest. `edge_ns` is an additional
/// edge.
pub(crate) fn bins_of(delays: &Distribution, series: &[f64], edge_ns: Option<u64>) -> Vec<Bin> {
    let mut edges: Vec<u64> = (0..DECADES)
        .flat_map(|decade| {
            series
                .iter()
                .map(move |step| (step * 10_f64.powi(decade)).round() as u64)
        })
        .chain(edge_ns)
        .collect();
    // Below 20 ns, adjacent edges of the finest series round to the same nanosecond.
    edges.sort_unstable();
    edges.dedup();
    let mut bins: Vec<Bin> = edges
        .windows(2)
        .map(|pair| Bin {
            low_ns: pair[0],
            high_ns: pair[1],
            count: delays.count_between(pair[0], pair[1]),
        })
        .collect();
    let first = bins
        .iter()
        .position(|bin| bin.count > 0)
        .unwrap_or(bins.len());
    let end = bins
        .iter()
        .rposition(|bin| bin.count > 0)
        .map_or(first, |last| last + 1);
    bins.truncate(end);
    bins.split_off(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_cover_all_delays() {
        let mut delays = Distribution::new();
        for ns in [1, 17, 950, 1_000, 123_456_789, 70_000_000_000] {
            delays.record(ns);
        }
        for series in SERIES {
            let bins = bins_of(&delays, series, Some(333));
            assert_eq!(bins.iter().map(|bin| bin.count).sum::<u64>(), 6);
            assert_eq!(bins[0].low_ns, 1);
            assert!(bins.iter().all(|bin| bin.low_ns < bin.high_ns));
            assert!(
                bins.windows(2)
                    .all(|pair| pair[0].high_ns == pair[1].low_ns)
            );
            assert!(bins.iter().any(|bin| bin.low_ns == 333));
        }
        assert!(bins_of(&Distribution::new(), SERIES[0], None).is_empty());
    }
}
