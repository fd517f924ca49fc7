//! The coefficients of a repair symbol, from a key of 16 bits (RFC 8681).

use crate::tinymt32::{LANES, ParallelTinyMt32, TinyMt32};
use crate::wire::MAX_WINDOW;

/// The density threshold at which no coefficient is zero.
pub const FULL_DENSITY: u8 = 15;

/// Generates the coefficients of `repair_key`. Each coefficient is non-zero with probability
/// `(density + 1) / 16`. With `density` 15, no coefficient is zero. The results are those of RFC
/// 8681's `generate_coding_coefficients` for m = 8.
pub fn generate(repair_key: u16, density: u8, coefficients: &mut [u8]) {
    let mut generator = TinyMt32::new(repair_key.into());
    for coefficient in coefficients {
        *coefficient = next(&mut generator, density);
    }
}

#[inline]
fn next(generator: &mut TinyMt32, density: u8) -> u8 {
    let chosen = density >= FULL_DENSITY || generator.next_16() <= density;
    if chosen { generator.next_nonzero() } else { 0 }
}

/// Number of keys whose coefficients are generated in parallel.
pub(crate) const BATCH: usize = LANES;

/// Generates the coefficients of [`BATCH`] consecutive keys in parallel, one coefficient of each
/// key at a time. The results equal those of [`generate`].
#[derive(Clone, Debug)]
pub(crate) struct ParallelCoefficients {
    generators: ParallelTinyMt32,
    density: u8,
}

impl ParallelCoefficients {
    pub(crate) fn new(first_key: u16, density: u8) -> Self {
        let mut seeds = [0; BATCH];
        for (seed, i) in seeds.iter_mut().zip(0..) {
            *seed = first_key.wrapping_add(i).into();
        }
        Self {
            generators: ParallelTinyMt32::new(seeds),
            density,
        }
    }

    /// Returns the next coefficient of each key.
    #[inline]
    pub(crate) fn next(&mut self) -> [u8; BATCH] {
        if self.density >= FULL_DENSITY {
            return self.generators.next_nonzero();
        }
        let mut coefficients = [0; BATCH];
        for (i, coefficient) in coefficients.iter_mut().enumerate() {
            *coefficient = self
                .generators
                .run_single(i, |generator| next(generator, self.density));
        }
        coefficients
    }
}

/// The coefficients of a few consecutive keys, generated in advance. Callers usually use
/// consecutive keys.
#[derive(Debug)]
pub(crate) struct CoefficientCache {
    first_key: u16,
    density: u8,
    /// Number of coefficients of each key.
    count: usize,
    coefficients: [[u8; BATCH]; MAX_WINDOW],
    /// The latest requested key.
    last_key: u16,
}

impl CoefficientCache {
    pub(crate) fn new() -> Self {
        Self {
            first_key: 0,
            density: 0,
            count: 0,
            coefficients: [[0; BATCH]; MAX_WINDOW],
            last_key: 0,
        }
    }

    /// Like [`generate`]. Fills the cache only for consecutive keys.
    pub(crate) fn generate_received(&mut self, key: u16, density: u8, coefficients: &mut [u8]) {
        let is_next = key.wrapping_sub(self.last_key) <= 2;
        self.last_key = key;
        if self.contains(key, density, coefficients.len()) || is_next {
            self.generate(key, density, 0, coefficients);
        } else {
            generate(key, density, coefficients);
        }
    }

    #[inline]
    fn contains(&self, key: u16, density: u8, count: usize) -> bool {
        let lane = usize::from(key.wrapping_sub(self.first_key));
        lane < BATCH && density == self.density && count <= self.count
    }

    /// Like [`generate`]. If the key is not in the cache, fills the cache with at least `at_least`
    /// coefficients of this and the following keys.
    pub(crate) fn generate(
        &mut self,
        key: u16,
        density: u8,
        at_least: usize,
        coefficients: &mut [u8],
    ) {
        if !self.contains(key, density, coefficients.len()) {
            let mut generator = ParallelCoefficients::new(key, density);
            self.count = coefficients.len().max(at_least).min(MAX_WINDOW);
            self.coefficients[..self.count].fill_with(|| generator.next());
            (self.first_key, self.density) = (key, density);
        }
        let lane = usize::from(key.wrapping_sub(self.first_key)) % BATCH;
        for (coefficient, of_keys) in coefficients.iter_mut().zip(&self.coefficients) {
            *coefficient = of_keys[lane];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The low bytes of RFC 8682's numbers for seed 1. In the sparse case the low nibble of a
    /// number decides whether the next number gives a coefficient.
    #[test]
    fn coefficients_of_key_1_match_rfc_8682() {
        let mut full = [0; 8];
        generate(1, FULL_DENSITY, &mut full);
        assert_eq!(full, [37, 225, 177, 176, 21, 246, 54, 139]);
        let mut sparse = [0; 6];
        // Low nibbles: 5 gives 225; 1 gives 176; 5 gives 246; 6 gives 139; 8 and 13 give zeros.
        generate(1, 7, &mut sparse);
        assert_eq!(sparse, [225, 176, 246, 139, 0, 0]);
    }

    #[test]
    fn density_matches_the_threshold() {
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

    #[test]
    fn shorter_lists_are_prefixes_of_longer_ones() {
        for density in 0..=FULL_DENSITY {
            for key in (0..=u16::MAX).step_by(997) {
                let mut all = [0; 64];
                generate(key, density, &mut all);
                for count in 0..64 {
                    let mut first = vec![0; count];
                    generate(key, density, &mut first);
                    assert_eq!(first, all[..count]);
                }
            }
        }
    }

    #[test]
    fn cached_and_parallel_coefficients_equal_those_of_each_key() {
        let (mut cache, mut received) = (CoefficientCache::new(), CoefficientCache::new());
        for density in [0, 3, 14, FULL_DENSITY] {
            for first in (0..=u16::MAX).step_by(4099).chain([65_533]) {
                let keys = (0..BATCH as u16).map(|i| first.wrapping_add(i));
                let expected: Vec<[u8; 64]> = keys
                    .clone()
                    .map(|key| {
                        let mut coefficients = [0; 64];
                        generate(key, density, &mut coefficients);
                        coefficients
                    })
                    .collect();
                let mut generator = ParallelCoefficients::new(first, density);
                for i in 0..64 {
                    let drawn = generator.next();
                    assert!(
                        drawn
                            .iter()
                            .zip(&expected)
                            .all(|(c, of_key)| *c == of_key[i])
                    );
                }
                for ((key, expected), count) in keys.zip(&expected).zip([8, 8, 7, 9, 64, 0, 1, 3]) {
                    let mut coefficients = vec![0; count];
                    cache.generate(key, density, 8, &mut coefficients);
                    assert_eq!(coefficients, expected[..count]);
                    coefficients.fill(0);
                    received.generate_received(key, density, &mut coefficients);
                    assert_eq!(coefficients, expected[..count]);
                }
            }
        }
    }
}
