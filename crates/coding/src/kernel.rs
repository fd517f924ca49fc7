//! Linear combinations of symbols, optimised for each processor.
//!
//! Encoding, recoding and decoding all compute sums of symbols, each multiplied by a coefficient. A
//! kernel computes the sum piece by piece: it keeps a piece of the result in registers, adds all
//! the symbols, and stores the piece. So it reads each symbol once and writes the result once, for
//! any number of symbols.
//!
//! If symbols arrive one by one and several sums are needed, a kernel *spreads* each symbol: it
//! reads the symbol once and adds it to all sums, with a different coefficient for each.
//!
//! Each instruction set has a kernel. The program chooses one at run time ([`Kernel::fastest`]).
//! All kernels compute the same bytes.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512_gfni;
#[cfg(target_arch = "x86_64")]
mod blocks;
#[cfg(target_arch = "x86_64")]
mod gfni;
mod portable;
#[cfg(target_arch = "x86_64")]
mod ssse3;

use std::fmt;

/// One summand: a coefficient and its symbol. A shorter symbol counts as padded with zeros. Bytes
/// beyond the result are not read.
pub type Term<'a> = (u8, &'a [u8]);

/// Computes the sum of the terms. If the flag is set, adds it to the previous result.
type Combine = fn(&mut [u8], &[Term<'_>], bool);

/// Adds multiples of one symbol to several sums. If the flag is not set, the previous sums count as
/// zero.
type Spread = fn(&mut [u8], usize, &[u8], &[u8], bool);

/// The two functions of a kernel.
#[derive(Clone, Copy)]
struct Operations {
    combine: Combine,
    spread: Spread,
}

/// An implementation of linear combinations.
#[derive(Clone, Copy)]
pub struct Kernel {
    name: &'static str,
    operations: Operations,
}

impl Kernel {
    /// Returns the kernels that this processor can run, fastest first. The last one is `portable`,
    /// which runs everywhere.
    pub fn available() -> impl Iterator<Item = Self> {
        let kernel = |name, operations: Option<Operations>| {
            Some(Self {
                name,
                operations: operations?,
            })
        };
        #[cfg(target_arch = "x86_64")]
        let vector_kernels = [
            kernel("avx512-gfni", avx512_gfni::detect()),
            kernel("avx2-gfni", gfni::detect()),
            kernel("avx2", avx2::detect()),
            kernel("ssse3", ssse3::detect()),
        ];
        #[cfg(not(target_arch = "x86_64"))]
        let vector_kernels = [];
        let portable = kernel("portable", Some(portable::OPERATIONS));
        vector_kernels.into_iter().flatten().chain(portable)
    }

    /// Returns the fastest kernel that this processor can run.
    pub fn fastest() -> Self {
        let portable = Self {
            name: "portable",
            operations: portable::OPERATIONS,
        };
        Self::available().next().unwrap_or(portable)
    }

    /// Returns the name of the instruction set.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Sets `result` to the sum of the terms.
    #[inline]
    pub fn dot(&self, result: &mut [u8], terms: &[Term<'_>]) {
        (self.operations.combine)(result, terms, false);
    }

    /// Adds `coefficient` times `symbol` to `result`.
    #[inline]
    pub fn mul_add(&self, result: &mut [u8], coefficient: u8, symbol: &[u8]) {
        (self.operations.combine)(result, &[(coefficient, symbol)], true);
    }

    /// Sets each sum to its coefficient times `source`. Each sum occupies `stride` bytes of `sums`.
    /// Bytes of a sum beyond the source do not change. Ignores source bytes beyond `stride`, and
    /// coefficients without a whole sum in `sums`.
    #[inline]
    pub fn spread(&self, sums: &mut [u8], stride: usize, coefficients: &[u8], source: &[u8]) {
        self.spread_with(sums, stride, coefficients, source, false);
    }

    /// Like [`spread`](Self::spread), but adds the products to the sums.
    #[inline]
    pub fn add_spread(&self, sums: &mut [u8], stride: usize, coefficients: &[u8], source: &[u8]) {
        self.spread_with(sums, stride, coefficients, source, true);
    }

    fn spread_with(
        &self,
        sums: &mut [u8],
        stride: usize,
        coefficients: &[u8],
        source: &[u8],
        accumulate: bool,
    ) {
        let source = &source[..source.len().min(stride)];
        let whole_sums = sums
            .len()
            .checked_div(stride)
            .unwrap_or(0)
            .min(coefficients.len());
        if whole_sums > 0 {
            let sums = &mut sums[..whole_sums * stride];
            let coefficients = &coefficients[..whole_sums];
            (self.operations.spread)(sums, stride, coefficients, source, accumulate);
        }
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Kernel").field(&self.name).finish()
    }
}

/// Returns `bytes`, at most `N`, padded with zeros.
#[cfg(target_arch = "x86_64")]
#[inline]
fn pad_with_zeros<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut padded = [0; N];
    padded[..bytes.len()].copy_from_slice(bytes);
    padded
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::field::mul;

    /// Computes a combination byte by byte, by the definition.
    fn combine_by_definition(result: &mut [u8], terms: &[Term<'_>], accumulate: bool) {
        for (i, byte) in result.iter_mut().enumerate() {
            let previous = if accumulate { *byte } else { 0 };
            *byte = terms.iter().fold(previous, |sum, (coefficient, symbol)| {
                sum ^ mul(*coefficient, symbol.get(i).copied().unwrap_or(0))
            });
        }
    }

    fn check(result: &[u8], terms: &[Term<'_>]) -> Result<(), TestCaseError> {
        for accumulate in [false, true] {
            let mut expected = result.to_vec();
            combine_by_definition(&mut expected, terms, accumulate);
            for kernel in Kernel::available() {
                let mut found = result.to_vec();
                (kernel.operations.combine)(&mut found, terms, accumulate);
                prop_assert_eq!(&found, &expected, "{:?}", kernel);
            }
        }
        Ok(())
    }

    fn coefficient() -> impl Strategy<Value = u8> {
        prop_oneof![Just(0), Just(1), any::<u8>()]
    }

    proptest! {
        #[test]
        fn every_kernel_equals_the_definition(
            memory in prop::collection::vec(any::<u8>(), 2000),
            result in prop::collection::vec(any::<u8>(), 0..1600),
            terms in prop::collection::vec((coefficient(), 0..400_usize, 0..1600_usize), 0..=64),
        ) {
            let terms: Vec<Term<'_>> = terms
                .iter()
                .map(|&(coefficient, from, len)| (coefficient, &memory[from..from + len]))
                .collect();
            check(&result, &terms)?;
        }

        #[test]
        fn kernels_agree_on_symbols_of_equal_length(
            memory in prop::collection::vec(any::<u8>(), 1500 + 64),
            len in 0..1500_usize,
            coefficients in prop::collection::vec(coefficient(), 1..=64),
        ) {
            let terms: Vec<Term<'_>> = coefficients
                .iter()
                .enumerate()
                .map(|(at, &coefficient)| (coefficient, &memory[at..at + len]))
                .collect();
            check(&memory[..len], &terms)?;
        }
    }

    fn check_spread(
        sums: &[u8],
        stride: usize,
        coefficients: &[u8],
        source: &[u8],
    ) -> Result<(), TestCaseError> {
        for accumulate in [false, true] {
            let mut expected = sums.to_vec();
            for (sum, coefficient) in expected.chunks_exact_mut(stride).zip(coefficients) {
                let len = source.len().min(stride);
                combine_by_definition(&mut sum[..len], &[(*coefficient, source)], accumulate);
            }
            for kernel in Kernel::available() {
                let mut found = sums.to_vec();
                if accumulate {
                    kernel.add_spread(&mut found, stride, coefficients, source);
                } else {
                    kernel.spread(&mut found, stride, coefficients, source);
                }
                prop_assert_eq!(&found, &expected, "{:?}", kernel);
            }
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn every_kernel_spreads_by_the_definition(
            memory in prop::collection::vec(any::<u8>(), 0..6000),
            source in prop::collection::vec(any::<u8>(), 0..800),
            stride in 1..900_usize,
            coefficients in prop::collection::vec(coefficient(), 0..=10),
        ) {
            check_spread(&memory, stride, &coefficients, &source)?;
        }
    }

    #[test]
    fn kernels_spread_every_source_length() {
        let memory: Vec<u8> = (0..1800_u32).map(|i| (i * 151 + 7) as u8).collect();
        for len in 0..=600 {
            check_spread(&memory, 600, &[0x8e, 0, 1], &memory[3..3 + len]).unwrap();
        }
        check_spread(&memory, 0x1000, &[2], &memory).unwrap();
    }

    #[test]
    fn kernels_combine_every_length_and_coefficient() {
        let memory: Vec<u8> = (0..600_u32).map(|i| (i * 151 + 7) as u8).collect();
        for len in 0..600 {
            check(&memory[..len], &[(0x8e, &memory[1..len.max(1)])]).unwrap();
        }
        for coefficient in 0..=255 {
            check(&memory, &[(coefficient, &memory)]).unwrap();
        }
    }

    #[test]
    fn portable_kernel_is_last_and_fastest_is_first() {
        let names: Vec<_> = Kernel::available().map(|kernel| kernel.name()).collect();
        assert_eq!(names.last(), Some(&"portable"));
        assert_eq!(names[0], Kernel::fastest().name());
    }
}
