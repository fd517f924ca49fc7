//! The loops of the kernels that know no masks: whole blocks in registers, what is left of a symbol by way of a padded vector.

/// Makes `detect`, `combine` and `spread` of a kernel for processors with `$features`, whose vectors have `$vector` bytes, from what the module says of
/// its instructions: `zero`, `load`, `store`, `xor`, `factor` (a coefficient in the form that products are made with) and `times`.
///
/// A macro, since a function cannot be generic over what it is compiled for.
macro_rules! kernel_of_blocks {
    ($vector:literal, $features:literal, $($feature:tt)&&+) => {
        /// Bytes of a vector.
        const VECTOR: usize = $vector;
        /// Bytes of the result that are held in registers.
        const BLOCK: usize = 4 * VECTOR;

        /// The kernel, where the processor can run it.
        pub(super) fn detect() -> Option<Operations> {
            ($(std::arch::is_x86_feature_detected!($feature))&&+).then_some(Operations {
                // SAFETY: the processor has what `combine` is compiled for, as was just found.
                combine: |result, terms, keep| unsafe { combine(result, terms, keep) },
                // SAFETY: the same holds for `spread`.
                spread: |sums, stride, coefficients, source, keep| unsafe {
                    spread(sums, stride, coefficients, source, keep);
                },
            })
        }

        #[target_feature(enable = $features)]
        fn combine(result: &mut [u8], terms: &[Term<'_>], keep: bool) {
            let (blocks, rest) = result.as_chunks_mut::<BLOCK>();
            let rest_at = blocks.len() * BLOCK;
            for (i, block) in blocks.iter_mut().enumerate() {
                sum::<4>(block.as_chunks_mut().0, i * BLOCK, terms, keep);
            }
            for (i, part) in rest.chunks_mut(VECTOR).enumerate() {
                let mut whole = [0; VECTOR];
                whole[..part.len()].copy_from_slice(part);
                let mut vector = [whole];
                sum::<1>(&mut vector, rest_at + i * VECTOR, terms, keep);
                part.copy_from_slice(&vector[0][..part.len()]);
            }
        }

        /// The `N` vectors of the result that begin at byte `at` of it.
        #[target_feature(enable = $features)]
        #[inline]
        fn sum<const N: usize>(
            result: &mut [[u8; VECTOR]],
            at: usize,
            terms: &[Term<'_>],
            keep: bool,
        ) {
            let mut sums = [zero(); N];
            if keep {
                for (sum, bytes) in sums.iter_mut().zip(&*result) {
                    *sum = load(bytes);
                }
            }
            for &(coefficient, symbol) in terms {
                let factor = factor(coefficient);
                for (i, sum) in sums.iter_mut().enumerate() {
                    let mut padded = [0; VECTOR];
                    let Some(bytes) = piece(symbol, at + i * VECTOR, &mut padded) else {
                        break;
                    };
                    *sum = xor(*sum, times(load(bytes), factor));
                }
            }
            for (sum, bytes) in sums.iter().zip(result) {
                store(bytes, *sum);
            }
        }

        #[target_feature(enable = $features)]
        fn spread(
            sums: &mut [u8],
            stride: usize,
            coefficients: &[u8],
            source: &[u8],
            keep: bool,
        ) {
            let (blocks, rest) = source.as_chunks::<BLOCK>();
            let rest_at = blocks.len() * BLOCK;
            for (i, block) in blocks.iter().enumerate() {
                let at = i * BLOCK;
                for (sum, &coefficient) in sums.chunks_mut(stride).zip(coefficients) {
                    if let Some(sum) = sum.get_mut(at..at + BLOCK) {
                        let (sum, block) = (sum.as_chunks_mut().0, block.as_chunks().0);
                        add_products::<4>(sum, coefficient, block, keep);
                    }
                }
            }
            for (i, part) in rest.chunks(VECTOR).enumerate() {
                let at = rest_at + i * VECTOR;
                let mut padded = [0; VECTOR];
                padded[..part.len()].copy_from_slice(part);
                for (sum, &coefficient) in sums.chunks_mut(stride).zip(coefficients) {
                    if let Some(sum) = sum.get_mut(at..at + part.len()) {
                        let mut whole = [0; VECTOR];
                        whole[..part.len()].copy_from_slice(sum);
                        let mut vector = [whole];
                        add_products::<1>(&mut vector, coefficient, &[padded], keep);
                        sum.copy_from_slice(&vector[0][..part.len()]);
                    }
                }
            }
        }

        /// Adds the products of `N` vectors of a source to those of a sum, or puts them there.
        #[target_feature(enable = $features)]
        #[inline]
        fn add_products<const N: usize>(
            sum: &mut [[u8; VECTOR]],
            coefficient: u8,
            source: &[[u8; VECTOR]],
            keep: bool,
        ) {
            let factor = factor(coefficient);
            for (sum, bytes) in sum.iter_mut().zip(source).take(N) {
                let own = if keep { load(sum) } else { zero() };
                store(sum, xor(own, times(load(bytes), factor)));
            }
        }
    };
}

pub(super) use kernel_of_blocks;
