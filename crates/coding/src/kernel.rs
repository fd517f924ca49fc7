//! Linear combinations of symbols, as fast as the processor can.
//!
//! Encoding, recoding and decoding are all the same work: the sum of some symbols, each multiplied with a coefficient. A
//! kernel makes the whole sum at once: it takes a piece of the result into registers, goes over all the symbols, and
//! stores it. So each symbol is read once and the result written once, however many symbols there are.
//!
//! There is a kernel for each instruction set, chosen once at run time ([`Kernel::fastest`]); all give the same bytes.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512_gfni;
#[cfg(target_arch = "x86_64")]
mod gfni;
mod portable;
#[cfg(target_arch = "x86_64")]
mod ssse3;

use std::fmt;

/// One summand: a coefficient and the symbol it multiplies. A symbol that is shorter than the result counts as padded
/// with zeros; what of it goes beyond the result is not read.
pub type Term<'a> = (u8, &'a [u8]);

/// Makes the sum of the terms. Where the flag is set the result's own bytes are a summand too.
type Combine = fn(&mut [u8], &[Term<'_>], bool);

/// A way to make linear combinations.
#[derive(Clone, Copy)]
pub struct Kernel {
    name: &'static str,
    combine: Combine,
}

impl Kernel {
    /// The kernels that this processor can run, fastest first. The last one is `portable`, which runs everywhere.
    pub fn available() -> impl Iterator<Item = Self> {
        let kernel = |name, combine: Option<Combine>| {
            Some(Self {
                name,
                combine: combine?,
            })
        };
        #[cfg(target_arch = "x86_64")]
        let special = [
            kernel("avx512-gfni", avx512_gfni::detect()),
            kernel("avx2-gfni", gfni::detect()),
            kernel("avx2", avx2::detect()),
            kernel("ssse3", ssse3::detect()),
        ];
        #[cfg(not(target_arch = "x86_64"))]
        let special = [];
        let portable = kernel("portable", Some(portable::combine));
        special.into_iter().flatten().chain(portable)
    }

    /// The fastest kernel that this processor can run.
    pub fn fastest() -> Self {
        let portable = Self {
            name: "portable",
            combine: portable::combine,
        };
        Self::available().next().unwrap_or(portable)
    }

    /// The instruction set it is made for.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// `result` becomes the sum of the terms.
    #[inline]
    pub fn dot(&self, result: &mut [u8], terms: &[Term<'_>]) {
        (self.combine)(result, terms, false);
    }

    /// The sum of the terms is added to `result`.
    #[inline]
    pub fn add_dot(&self, result: &mut [u8], terms: &[Term<'_>]) {
        (self.combine)(result, terms, true);
    }

    /// `coefficient` times `symbol` is added to `result`.
    #[inline]
    pub fn mul_add(&self, result: &mut [u8], coefficient: u8, symbol: &[u8]) {
        (self.combine)(result, &[(coefficient, symbol)], true);
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Kernel").field(&self.name).finish()
    }
}

/// The `N` bytes of `symbol` from `at` on: its own, or padded with zeros in `padded`; `None` where it has ended before.
#[cfg(target_arch = "x86_64")]
#[inline]
fn piece<'a, const N: usize>(
    symbol: &'a [u8],
    at: usize,
    padded: &'a mut [u8; N],
) -> Option<&'a [u8; N]> {
    let rest = symbol.get(at..)?;
    if let Some(whole) = rest.first_chunk() {
        return Some(whole);
    }
    if rest.is_empty() {
        return None;
    }
    padded[..rest.len()].copy_from_slice(rest);
    Some(padded)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::field::mul;

    /// The definition, byte by byte.
    fn reference(result: &mut [u8], terms: &[Term<'_>], keep: bool) {
        for (i, byte) in result.iter_mut().enumerate() {
            let own = if keep { *byte } else { 0 };
            *byte = terms.iter().fold(own, |sum, (coefficient, symbol)| {
                sum ^ mul(*coefficient, symbol.get(i).copied().unwrap_or(0))
            });
        }
    }

    fn check(result: &[u8], terms: &[Term<'_>]) -> Result<(), TestCaseError> {
        for keep in [false, true] {
            let mut expected = result.to_vec();
            reference(&mut expected, terms, keep);
            for kernel in Kernel::available() {
                let mut found = result.to_vec();
                (kernel.combine)(&mut found, terms, keep);
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
        fn every_kernel_gives_the_sum_of_the_definition(
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
        fn symbols_of_one_length(
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

    #[test]
    fn every_length_and_every_coefficient() {
        let memory: Vec<u8> = (0..600_u32).map(|i| (i * 151 + 7) as u8).collect();
        for len in 0..600 {
            check(&memory[..len], &[(0x8e, &memory[1..len.max(1)])]).unwrap();
        }
        for coefficient in 0..=255 {
            check(&memory, &[(coefficient, &memory)]).unwrap();
        }
    }

    #[test]
    fn the_portable_kernel_is_always_there_and_the_fastest_is_the_first() {
        let names: Vec<_> = Kernel::available().map(|kernel| kernel.name()).collect();
        assert_eq!(names.last(), Some(&"portable"));
        assert_eq!(names[0], Kernel::fastest().name());
    }
}
