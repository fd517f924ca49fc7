//! Divides products, with explicit rounding.

/// Returns `a * b / c`, rounded up; `None` for `c = 0` or an overflow.
pub(crate) fn mul_div_up(a: u128, b: u128, c: u128) -> Option<u128> {
    if c == 0 {
        return None;
    }
    Some(a.checked_mul(b)?.div_ceil(c))
}

/// Returns `a * b / c`, rounded down; `None` for `c = 0` or an overflow.
pub(crate) fn mul_div_down(a: u128, b: u128, c: u128) -> Option<u128> {
    a.checked_mul(b)?.checked_div(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn division_by_zero_and_overflow_give_none() {
        assert_eq!(mul_div_up(7, 3, 2), Some(11));
        assert_eq!(mul_div_down(7, 3, 2), Some(10));
        assert_eq!(mul_div_up(1, 1, 0), None);
        assert_eq!(mul_div_down(1, 1, 0), None);
        assert_eq!(mul_div_up(u128::MAX, 2, 2), None);
    }
}
