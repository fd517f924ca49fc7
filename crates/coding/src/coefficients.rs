//! The coefficients of a repair symbol, from a key of 16 bits (RFC 8681, section 3.6).

use crate::tinymt32::TinyMt32;

/// The density threshold at which no coefficient is zero.
pub const FULL_DENSITY: u8 = 15;

/// Fills `coefficients` with those of `repair_key`: each is non-zero with probability (`density` + 1) / 16, and all are
/// with `density` 15, the most. This is RFC 8681's `generate_coding_coefficients` for m = 8, number for number.
pub fn generate(repair_key: u16, density: u8, coefficients: &mut [u8]) {
    let mut generator = TinyMt32::new(repair_key.into());
    for coefficient in coefficients {
        let chosen = density >= FULL_DENSITY || generator.next_16() <= density;
        *coefficient = if chosen { generator.next_nonzero() } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The low bytes of RFC 8682's numbers of seed 1; where the low nibble decides, of every other one.
    #[test]
    fn the_coefficients_of_key_1() {
        let mut full = [0; 8];
        generate(1, FULL_DENSITY, &mut full);
        assert_eq!(full, [37, 225, 177, 176, 21, 246, 54, 139]);
        let mut sparse = [0; 6];
        // Low nibbles: 5, so 225; 1, so 176; 5, so 246; 6, so 139; 8, nothing; 13, nothing.
        generate(1, 7, &mut sparse);
        assert_eq!(sparse, [225, 176, 246, 139, 0, 0]);
    }

    #[test]
    fn the_density_is_what_was_asked_for() {
        for density in 0..=FULL_DENSITY {
            let mut coefficients = [0; 64];
            let filled: usize = (0..1000)
                .map(|key| {
                    generate(key, density, &mut coefficients);
                    coefficients.iter().filter(|&&c| c != 0).count()
                })
                .sum();
            let expected = 4000 * (usize::from(density) + 1);
            assert!(
                filled.abs_diff(expected) < 1000,
                "density {density}: {filled}"
            );
            assert!(density < FULL_DENSITY || filled == expected);
        }
    }
}
