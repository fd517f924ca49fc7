//! What packets cost at worst, as a multiple of what they mostly do.

/// A multiple above this says that the machine was busy, and not what a packet costs.
const MOST: f64 = 100.0;
/// The least factor: what is taken where nothing was measured.
const LEAST: f64 = 1.5;

/// The least factor such that what is slow, beside what is in the middle, is done within a stall and so many times that. The stall is in the bound by itself, so
/// it must not be in the factor too. Where a long stall hides all else the factor is that of a machine that nobody has measured.
pub(super) fn worst_case<'a>(
    slow_and_middle: impl Iterator<Item = &'a (f64, f64)>,
    stall_ns: u64,
) -> f64 {
    let times = slow_and_middle.map(|(slow, middle)| (slow - stall_ns as f64) / middle.max(1.0));
    times.fold(LEAST, f64::max).min(MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_is_not_in_the_worst_case_too() {
        // Packets of 2 us within 30, and bursts of 100 within 150.
        let seen = [(30_000.0, 2000.0), (150_000.0, 100_000.0)];
        assert!((worst_case(seen.iter(), 26_000) - 2.0).abs() < 1e-9);
        assert!((worst_case(seen.iter(), 27_200) - 1.5).abs() < 1e-9);
        assert!((worst_case(seen.iter(), 60_000) - LEAST).abs() < 1e-9);
        assert!((worst_case(seen.iter(), 0) - 15.0).abs() < 1e-9);
        assert!((worst_case([(1e9, 1.0)].iter(), 0) - MOST).abs() < 1e-9);
    }
}
