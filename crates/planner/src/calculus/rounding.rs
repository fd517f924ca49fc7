//! Products of two numbers by a third, rounded outward.

/// `a * b / c`, rounded up; `None` when it has no value or does not fit.
pub(crate) fn mul_div_up(a: u128, b: u128, c: u128) -> Option<u128> {
    if c == 0 {
        return None;
    }
    Some(a.checked_mul(b)?.div_ceil(c))
}

/// `a * b / c`, rounded down; `None` when it has no value or does not fit.
pub(crate) fn mul_div_down(a: u128, b: u128, c: u128) -> Option<u128> {
    a.checked_mul(b)?.checked_div(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_value_or_no_room_is_told() {
        assert_eq!(mul_div_up(7, 3, 2), Some(11));
        assert_eq!(mul_div_down(7, 3, 2), Some(10));
        assert_eq!(mul_div_up(1, 1, 0), None);
        assert_eq!(mul_div_down(1, 1, 0), None);
        assert_eq!(mul_div_up(u128::MAX, 2, 2), None);
    }
}
