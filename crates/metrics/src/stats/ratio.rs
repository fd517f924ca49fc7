//! The ratio of two subjects measured in turns.

use super::{CONFIDENCE, Estimate, median_ci};

/// Rounds that cannot be paired.
#[derive(Debug, thiserror::Error)]
#[error("cannot form a ratio: {0}")]
pub struct RatioError(String);

/// The median over rounds of subject / reference with its 95 % interval by [`median_ci`].
/// `subject[i]` and `reference[i]` were measured in the same round, in the same unit.
///
/// Order statistics, not a bootstrap: they are exact for any distribution and need no seed. At 30
/// rounds the interval is from the 10th to the 21st ratio, which a reader can check by hand.
///
/// # Errors
/// The counts differ, are zero, or a figure is not a positive finite number.
pub fn paired_ratio(subject: &[f64], reference: &[f64]) -> Result<Estimate, RatioError> {
    if subject.len() != reference.len() {
        return Err(RatioError(format!(
            "{} rounds of the subject but {} of the reference; pair them round by round",
            subject.len(),
            reference.len()
        )));
    }
    let usable = |v: &f64| v.is_finite() && *v > 0.0;
    if let Some(round) = subject
        .iter()
        .zip(reference)
        .position(|(s, r)| !usable(s) || !usable(r))
    {
        return Err(RatioError(format!(
            "round {round} measured {} against {}; both must be positive numbers",
            subject[round], reference[round]
        )));
    }
    let ratios: Vec<f64> = subject.iter().zip(reference).map(|(s, r)| s / r).collect();
    median_ci(&ratios, CONFIDENCE).ok_or_else(|| RatioError("no round was measured".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ramp(n: usize, from: f64, step: f64) -> Vec<f64> {
        (0..n).map(|i| from + step * i as f64).collect()
    }

    #[test]
    fn interval_is_from_the_tenth_to_the_twenty_first_of_thirty() {
        // Ratios 1.00, 1.01 .. 1.29 with a drifting reference: only the ratio counts.
        let reference = ramp(30, 8.0, 0.3);
        let ratios = ramp(30, 1.0, 0.01);
        let subject: Vec<f64> = reference.iter().zip(&ratios).map(|(a, b)| a * b).collect();
        let ratio = paired_ratio(&subject, &reference).unwrap();
        assert!((ratio.value - 1.145).abs() < 1e-9);
        let interval = ratio.interval.unwrap();
        assert!((interval.low - 1.09).abs() < 1e-9 && (interval.high - 1.20).abs() < 1e-9);
        assert_eq!(ratio.at_most(1.21), Some(true));
        assert_eq!(
            ratio.at_most(1.19),
            Some(false),
            "the median is below, the interval is not"
        );
        assert_eq!(ratio.at_least(1.08), Some(true));
        assert_eq!(ratio.at_least(1.10), Some(false));
    }

    #[test]
    fn too_few_rounds_give_no_verdict() {
        let ratio = paired_ratio(&[1.0; 29], &[2.0; 29]).unwrap();
        assert_eq!(ratio.at_most(1.0), None);
        let ratio = paired_ratio(&[1.0; 30], &[2.0; 30]).unwrap();
        assert_eq!(ratio.at_most(0.5), Some(true));
    }

    #[test]
    fn an_unusable_round_is_an_error() {
        let text = |s: &[f64], r: &[f64]| paired_ratio(s, r).unwrap_err().to_string();
        assert!(text(&[1.0], &[]).contains("1 rounds of the subject but 0"));
        assert!(text(&[], &[]).contains("no round"));
        assert!(text(&[1.0, 2.0], &[1.0, 0.0]).contains("round 1 measured 2 against 0"));
        assert!(text(&[f64::NAN], &[1.0]).contains("round 0"));
    }
}
