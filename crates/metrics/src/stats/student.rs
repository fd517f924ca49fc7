//! Quantiles of Student's t.
//!
//! The distribution function of t is the regularized incomplete beta function (Abramowitz & Stegun
//! 26.7.1), here by its continued fraction (Numerical Recipes 6.4). Quantiles use bisection: a
//! report needs only a few.

/// Most terms of the continued fraction; it converges within a few dozen.
const TERMS: u32 = 500;
/// Bisection steps: enough for the last bit of an f64.
const HALVINGS: u32 = 200;

/// The value below which a t-distributed variable with `freedom` degrees of freedom stays with
/// `probability` (0 to 1, exclusive).
///
/// NaN if `probability` is not strictly between 0 and 1 or `freedom` is not positive.
pub(super) fn t_quantile(probability: f64, freedom: f64) -> f64 {
    // Negated, so that NaN fails too.
    if !(probability > 0.0 && probability < 1.0 && freedom > 0.0) {
        return f64::NAN;
    }
    quantile(probability, |t| t_cdf(t, freedom))
}

/// Inverts a distribution function that is symmetric about 0.
fn quantile(probability: f64, cdf: impl Fn(f64) -> f64) -> f64 {
    if probability < 0.5 {
        return -quantile(1.0 - probability, cdf);
    }
    let mut low = 0.0;
    let mut high = 1.0;
    while cdf(high) < probability && high < 1e300 {
        low = high;
        high *= 2.0;
    }
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        if cdf(middle) < probability {
            low = middle;
        } else {
            high = middle;
        }
    }
    f64::midpoint(low, high)
}

fn t_cdf(t: f64, freedom: f64) -> f64 {
    let tail = 0.5 * incomplete_beta(freedom / (freedom + t * t), freedom / 2.0, 0.5);
    if t >= 0.0 { 1.0 - tail } else { tail }
}

/// The regularized incomplete beta function I_x(a, b).
fn incomplete_beta(x: f64, a: f64, b: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    if x >= 1.0 {
        return 1.0;
    }
    let front = (ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (-x).ln_1p()).exp();
    // The fraction converges fast on one side of the mean only; the other side is its mirror image.
    if x < (a + 1.0) / (a + b + 2.0) {
        front * beta_fraction(x, a, b) / a
    } else {
        1.0 - front * beta_fraction(1.0 - x, b, a) / b
    }
}

/// Lentz's method on the continued fraction of the incomplete beta function.
fn beta_fraction(x: f64, a: f64, b: f64) -> f64 {
    const TINY: f64 = 1e-300;
    let away_from_zero = |v: f64| if v.abs() < TINY { TINY } else { v };
    let mut upper = 1.0;
    let mut lower = 1.0 / away_from_zero(1.0 - (a + b) * x / (a + 1.0));
    let mut result = lower;
    for term in 1..=TERMS {
        let k = f64::from(term);
        let even = k * (b - k) * x / ((a + 2.0 * k - 1.0) * (a + 2.0 * k));
        let odd = -(a + k) * (a + b + k) * x / ((a + 2.0 * k) * (a + 2.0 * k + 1.0));
        let mut step = 1.0;
        for numerator in [even, odd] {
            lower = 1.0 / away_from_zero(1.0 + numerator * lower);
            upper = away_from_zero(1.0 + numerator / upper);
            step = lower * upper;
            result *= step;
        }
        if (step - 1.0).abs() < 1e-15 {
            break;
        }
    }
    result
}

/// The logarithm of the gamma function for positive arguments: Stirling's series, with the argument
/// raised to at least 10, where the series is exact.
pub(super) fn ln_gamma(x: f64) -> f64 {
    let mut x = x;
    let mut shift = 0.0;
    while x < 10.0 {
        shift += x.ln();
        x += 1.0;
    }
    let inverse = 1.0 / x;
    let square = inverse * inverse;
    let series = inverse
        * (1.0 / 12.0 - square * (1.0 / 360.0 - square * (1.0 / 1260.0 - square * (1.0 / 1680.0))));
    (x - 0.5) * x.ln() - x + 0.5 * (2.0 * std::f64::consts::PI).ln() + series - shift
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The two-sided 95 % and 99.9 % points; NIST/SEMATECH e-Handbook 1.3.6.7.2 has their first
    /// three decimals.
    #[test]
    fn quantiles_match_the_tables() {
        for (freedom, p975, p9995) in [
            (1.0, 12.706_204_7, 636.619_249_4),
            (2.0, 4.302_652_7, 31.599_054_6),
            (4.0, 2.776_445_1, 8.610_301_6),
            (9.0, 2.262_157_2, 4.780_912_6),
            (29.0, 2.045_229_6, 3.659_405_0),
            (49.0, 2.009_575_2, 3.500_443_0),
            (1000.0, 1.962_339_1, 3.300_282_6),
        ] {
            assert!(
                (t_quantile(0.975, freedom) / p975 - 1.0).abs() < 1e-7,
                "df {freedom}"
            );
            assert!(
                (t_quantile(0.9995, freedom) / p9995 - 1.0).abs() < 1e-7,
                "df {freedom}: {}",
                t_quantile(0.9995, freedom)
            );
        }
        // At ten million degrees of freedom t and normal agree in the first seven digits.
        assert!((t_quantile(0.975, 1e7) - 1.959_964).abs() < 1e-5);
    }

    #[test]
    fn quantiles_are_symmetric_about_zero() {
        assert!((t_quantile(0.025, 9.0) + t_quantile(0.975, 9.0)).abs() < 1e-12);
        assert!(t_quantile(0.5, 9.0).abs() < 1e-12);
        for nonsense in [0.0, 1.0, -1.0, f64::NAN] {
            assert!(t_quantile(nonsense, 9.0).is_nan());
        }
        assert!(t_quantile(0.9, 0.0).is_nan());
    }

    #[test]
    fn ln_gamma_of_factorials() {
        let mut factorial: f64 = 1.0;
        for n in 1..30 {
            assert!(
                (ln_gamma(f64::from(n)) - factorial.ln()).abs() < 1e-9,
                "{n}"
            );
            factorial *= f64::from(n);
        }
        assert!((ln_gamma(0.5) - std::f64::consts::PI.sqrt().ln()).abs() < 1e-9);
    }
}
