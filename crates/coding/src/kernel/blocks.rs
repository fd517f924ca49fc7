//! The loops of the kernels with vectors: whole blocks in registers, then what is left, a vector at
//! a time.

/// Makes `detect`, `combine` and `spread` of a kernel for processors with `$features`, whose
/// vectors of type `$type` have `$vector` bytes, from what the module says of its instructions:
/// `zero`, `load`, `store`, the same of a part of a vector, whose other bytes are zero
/// (`load_part`, `store_part`), `xor`, `factor` (a coefficient in the form that products are made
/// with) and `times`.
///
/// A macro, since a function cannot be generic over what it is compiled for.
macro_rules! kernel_of_blocks {
    ($vector:literal of $type:ty, $features:literal, $($feature:tt)&&+) => {
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
                sum_block(block, i * BLOCK, terms, keep);
            }
            for (i, part) in rest.chunks_mut(VECTOR).enumerate() {
                sum_part(part, rest_at + i * VECTOR, terms, keep);
            }
        }

        /// The four vectors of the result that begin at byte `at` of it.
        #[target_feature(enable = $features)]
        #[inline]
        fn sum_block(result: &mut [u8; BLOCK], at: usize, terms: &[Term<'_>], keep: bool) {
            let mut sums = if keep { load_block(result) } else { [zero(); 4] };
            for &(coefficient, symbol) in terms {
                let Some(rest) = symbol.get(at..).filter(|rest| !rest.is_empty()) else {
                    continue;
                };
                let factor = factor(coefficient);
                let vectors = match rest.first_chunk() {
                    Some(whole) => load_block(whole),
                    None => [0, 1, 2, 3]
                        .map(|i| load_part(rest.get(i * VECTOR..).unwrap_or_default())),
                };
                for (sum, vector) in sums.iter_mut().zip(vectors) {
                    *sum = xor(*sum, times(vector, factor));
                }
            }
            store_block(result, sums);
        }

        /// The vector, or part of one, of the result that begins at byte `at` of it.
        #[target_feature(enable = $features)]
        #[inline]
        fn sum_part(result: &mut [u8], at: usize, terms: &[Term<'_>], keep: bool) {
            let mut sum = if keep { load_part(result) } else { zero() };
            for &(coefficient, symbol) in terms {
                if let Some(rest) = symbol.get(at..) {
                    sum = xor(sum, times(load_part(rest), factor(coefficient)));
                }
            }
            store_part(result, sum);
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
                let vectors = load_block(block);
                for (sum, &coefficient) in sums.chunks_mut(stride).zip(coefficients) {
                    let sum = sum.get_mut(i * BLOCK..).and_then(<[u8]>::first_chunk_mut);
                    let Some(sum) = sum else {
                        break;
                    };
                    let factor = factor(coefficient);
                    let mut own = if keep { load_block(sum) } else { [zero(); 4] };
                    for (own, vector) in own.iter_mut().zip(vectors) {
                        *own = xor(*own, times(vector, factor));
                    }
                    store_block(sum, own);
                }
            }
            for (i, part) in rest.chunks(VECTOR).enumerate() {
                let at = rest_at + i * VECTOR;
                let vector = load_part(part);
                for (sum, &coefficient) in sums.chunks_mut(stride).zip(coefficients) {
                    let Some(sum) = sum.get_mut(at..at + part.len()) else {
                        break;
                    };
                    let own = if keep { load_part(sum) } else { zero() };
                    store_part(sum, xor(own, times(vector, factor(coefficient))));
                }
            }
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn load_block(bytes: &[u8; BLOCK]) -> [$type; 4] {
            let (vectors, _) = bytes.as_chunks();
            [0, 1, 2, 3].map(|i: usize| load(&vectors[i]))
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn store_block(bytes: &mut [u8; BLOCK], vectors: [$type; 4]) {
            for (bytes, vector) in bytes.as_chunks_mut().0.iter_mut().zip(vectors) {
                store(bytes, vector);
            }
        }
    };
}

pub(super) use kernel_of_blocks;
