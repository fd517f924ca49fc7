//! Comparison of encoding symbol identifiers, which count modulo 2^32 (serial numbers, RFC 1982).

/// Returns whether `a` precedes `b`. That is so if `b - a`, modulo 2^32, is 1 to 2^31.
#[inline]
pub(crate) fn is_before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b)).cast_signed() < 0
}

/// Returns the numbers from `from` to before `to`.
#[inline]
pub(crate) fn range(from: u32, to: u32) -> impl Iterator<Item = u32> {
    (0..to.wrapping_sub(from)).map(move |i| from.wrapping_add(i))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_continues_after_the_wrap() {
        assert!(is_before(1, 2) && !is_before(2, 1) && !is_before(2, 2));
        assert!(is_before(u32::MAX, 0) && !is_before(3, u32::MAX));
        assert_eq!(range(u32::MAX, 2).collect::<Vec<_>>(), [u32::MAX, 0, 1]);
    }
}
