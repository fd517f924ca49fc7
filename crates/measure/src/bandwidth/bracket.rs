//! The bisection: which rate to try next.

/// Rates below which a search is pointless: one packet a second.
const LOWEST_MPPS: f64 = 1e-6;

/// The highest rate known to come through and the lowest known not to, millions of packets a second.
#[derive(Debug)]
pub(super) struct Bracket {
    clean: f64,
    too_high: f64,
    guess: Option<f64>,
}

impl Bracket {
    /// Below a rate known to be too high; `guess` is tried first when it lies below it.
    pub(super) fn below(too_high: f64, guess: f64) -> Self {
        Self {
            clean: 0.0,
            too_high,
            guess: Some(guess),
        }
    }

    /// The rate to try next; `None` once the bracket is as narrow as `resolution` of its upper end.
    pub(super) fn next(&mut self, resolution: f64) -> Option<f64> {
        let wide = self.too_high - self.clean > resolution * self.too_high;
        (wide && self.too_high > LOWEST_MPPS).then(|| {
            self.guess
                .take()
                .filter(|&guess| guess > self.clean && guess < self.too_high)
                .unwrap_or_else(|| f64::midpoint(self.clean, self.too_high))
        })
    }

    /// What came of a rate that [`Self::next`] gave.
    pub(super) fn tried(&mut self, rate: f64, came_through: bool) {
        if came_through {
            self.clean = rate;
        } else {
            self.too_high = rate;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn closes_in_on_any_limit(top in 0.01..100.0f64, part in 0.0..1.0f64, guess in -1.0..200.0f64, resolution in 0.001..0.5f64) {
            let limit = top * part;
            let mut bracket = Bracket::below(top, guess);
            let mut steps = 0;
            while let Some(rate) = bracket.next(resolution) {
                prop_assert!(rate > bracket.clean && rate < bracket.too_high);
                bracket.tried(rate, rate <= limit);
                steps += 1;
                prop_assert!(steps < 60);
            }
            prop_assert!(bracket.clean <= limit && limit <= bracket.too_high);
            let narrow = bracket.too_high - bracket.clean <= resolution * bracket.too_high;
            prop_assert!(narrow || bracket.too_high <= LOWEST_MPPS);
        }
    }

    #[test]
    fn a_good_guess_comes_first() {
        assert_eq!(Bracket::below(1.0, 0.3).next(0.02), Some(0.3));
        assert_eq!(Bracket::below(1.0, 1.0).next(0.02), Some(0.5));
        assert_eq!(Bracket::below(0.0, f64::NAN).next(0.02), None);
    }
}
