//! Converts nested prefixes to a sorted list of intervals.

use crate::lpm::NO_MATCH;
use crate::prefix::{Family, Prefix};

/// Returns the first address and the value of each interval, ascending from address 0. Adjacent
/// intervals have different values.
pub(super) fn build(prefixes: &[(Prefix, u32)], family: Family) -> Vec<(u128, u32)> {
    let mut ranges: Vec<(u128, u8, u128, u32)> = prefixes
        .iter()
        .filter(|(prefix, _)| prefix.family() == family)
        .map(|(prefix, value)| {
            let (first, last) = prefix.range();
            (first, prefix.len(), last, *value)
        })
        .collect();
    // Outer prefixes first. The sort is stable, so the last of equal prefixes wins.
    ranges.sort_by_key(|(first, len, ..)| (*first, *len));
    let end = match family {
        Family::V4 => u128::from(u32::MAX),
        Family::V6 => u128::MAX,
    };
    let mut intervals = vec![(0, NO_MATCH)];
    // The prefixes of the current address. Prefixes nest or are disjoint, so this is a stack.
    let mut open: Vec<(u128, u32)> = Vec::new();
    for (first, _, last, value) in ranges {
        close_prefixes(&mut open, &mut intervals, Some(first), end);
        open.push((last, value));
        push_interval(&mut intervals, first, value);
    }
    close_prefixes(&mut open, &mut intervals, None, end);
    intervals
}

/// Closes the prefixes that end before `until`. `None` closes all prefixes.
fn close_prefixes(
    open: &mut Vec<(u128, u32)>,
    intervals: &mut Vec<(u128, u32)>,
    until: Option<u128>,
    end: u128,
) {
    while let Some((last, _)) = open.pop_if(|(last, _)| until.is_none_or(|until| *last < until)) {
        if last < end {
            let outer = open.last().map_or(NO_MATCH, |(_, value)| *value);
            push_interval(intervals, last + 1, outer);
        }
    }
}

fn push_interval(intervals: &mut Vec<(u128, u32)>, first: u128, value: u32) {
    if intervals.last().is_some_and(|last| last.0 == first) {
        intervals.pop();
    }
    if intervals.last().is_none_or(|last| last.1 != value) {
        intervals.push((first, value));
    }
}
