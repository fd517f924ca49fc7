//! The loops of the vector kernels. They process whole blocks in registers first, and then the
//! rest, one vector at a time.

/// Defines `detect`, `combine` and `spread` of a kernel for processors with `$features`. Its
/// vectors have the type `$type` and `$vector` bytes. The module defines the operations:
///
/// * `zero`, `load`, `store` and `xor` of vectors,
/// * `load_part` and `store_part` of a part of a vector, whose other bytes are zero,
/// * `prepare_coefficient`, which converts a coefficient for `multiply`, and `multiply`.
///
/// This is a macro because a function cannot be generic over its target features.
macro_rules! kernel_of_blocks {
    ($vector:literal of $type:ty, $features:literal, $($feature:tt)&&+) => {
        /// Bytes of a vector.
        const VECTOR: usize = $vector;
        /// Bytes of the result that the registers hold at a time.
        const BLOCK: usize = 4 * VECTOR;

        /// Returns the kernel, if the processor can run it.
        pub(super) fn detect() -> Option<Operations> {
            ($(std::arch::is_x86_feature_detected!($feature))&&+).then_some(Operations {
                combine: |result, terms, accumulate| {
                    // SAFETY: `detect` returns this closure only on processors with `$features`.
                    unsafe { combine(result, terms, accumulate) };
                },
                spread: |sums, stride, coefficients, source, accumulate| {
                    // SAFETY: `detect` returns this closure only on processors with `$features`.
                    unsafe { spread(sums, stride, coefficients, source, accumulate) };
                },
            })
        }

        #[target_feature(enable = $features)]
        fn combine(result: &mut [u8], terms: &[Term<'_>], accumulate: bool) {
            let (blocks, rest) = result.as_chunks_mut::<BLOCK>();
            let rest_at = blocks.len() * BLOCK;
            for (i, block) in blocks.iter_mut().enumerate() {
                sum_block(block, i * BLOCK, terms, accumulate);
            }
            for (i, part) in rest.chunks_mut(VECTOR).enumerate() {
                sum_part(part, rest_at + i * VECTOR, terms, accumulate);
            }
        }

        /// Computes the four vectors of the result from byte `at` on.
        #[target_feature(enable = $features)]
        #[inline]
        fn sum_block(result: &mut [u8; BLOCK], at: usize, terms: &[Term<'_>], accumulate: bool) {
            let mut sums = if accumulate { load_block(result) } else { [zero(); 4] };
            for &(coefficient, symbol) in terms {
                let Some(rest) = symbol.get(at..).filter(|rest| !rest.is_empty()) else {
                    continue;
                };
                let factor = prepare_coefficient(coefficient);
                let vectors = match rest.first_chunk() {
                    Some(whole) => load_block(whole),
                    None => [0, 1, 2, 3]
                        .map(|i| load_part(rest.get(i * VECTOR..).unwrap_or_default())),
                };
                for (sum, vector) in sums.iter_mut().zip(vectors) {
                    *sum = xor(*sum, multiply(vector, factor));
                }
            }
            store_block(result, sums);
        }

        /// Computes one vector of the result, or a part of a vector, from byte `at` on.
        #[target_feature(enable = $features)]
        #[inline]
        fn sum_part(result: &mut [u8], at: usize, terms: &[Term<'_>], accumulate: bool) {
            let mut sum = if accumulate { load_part(result) } else { zero() };
            for &(coefficient, symbol) in terms {
                if let Some(rest) = symbol.get(at..) {
                    sum = xor(sum, multiply(load_part(rest), prepare_coefficient(coefficient)));
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
            accumulate: bool,
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
                    let factor = prepare_coefficient(coefficient);
                    let mut new_sum = if accumulate { load_block(sum) } else { [zero(); 4] };
                    for (part, vector) in new_sum.iter_mut().zip(vectors) {
                        *part = xor(*part, multiply(vector, factor));
                    }
                    store_block(sum, new_sum);
                }
            }
            for (i, part) in rest.chunks(VECTOR).enumerate() {
                let at = rest_at + i * VECTOR;
                let vector = load_part(part);
                for (sum, &coefficient) in sums.chunks_mut(stride).zip(coefficients) {
                    let Some(sum) = sum.get_mut(at..at + part.len()) else {
                        break;
                    };
                    let previous = if accumulate { load_part(sum) } else { zero() };
                    store_part(sum, xor(previous, multiply(vector, prepare_coefficient(coefficient))));
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
