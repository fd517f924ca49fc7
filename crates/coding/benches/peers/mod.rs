//! Other implementations to compare with, and the input of the benchmarks.

use libloading::Library;
use myelin_coding::{Term, TinyMt32};

type InitTables = unsafe extern "C" fn(i32, i32, *const u8, *mut u8);
type EncodeData = unsafe extern "C" fn(i32, i32, i32, *const u8, *const *const u8, *const *mut u8);
type DotProduct = unsafe extern "C" fn(i32, i32, *const u8, *const *const u8, *mut u8);

/// ISA-L's dot product over the same field, from the distribution's shared library.
pub(crate) struct Isal {
    init_tables: InitTables,
    dot_product: DotProduct,
    encode_data: EncodeData,
    _library: Library,
}

/// Coefficients expanded for ISA-L, and pointers to the symbols.
pub(crate) struct IsalTerms {
    coefficients: Vec<u8>,
    tables: Vec<u8>,
    symbols: Vec<*const u8>,
    len: usize,
}

impl Isal {
    /// Loads the library.
    pub(crate) fn load() -> Result<Self, libloading::Error> {
        // SAFETY: ISA-L runs no code when it is loaded. These are the signatures of its header
        // `erasure_code.h`, in all versions with major number 2.
        unsafe {
            let library = Library::new("libisal.so.2")?;
            Ok(Self {
                init_tables: *library.get(b"ec_init_tables\0")?,
                dot_product: *library.get(b"gf_vect_dot_prod\0")?,
                encode_data: *library.get(b"ec_encode_data\0")?,
                _library: library,
            })
        }
    }

    /// Prepares terms of equal length, at least 64 bytes. The symbols must outlive the result.
    pub(crate) fn prepare_terms(&self, terms: &[Term<'_>]) -> IsalTerms {
        let len = terms[0].1.len();
        assert!(len >= 64 && terms.iter().all(|(_, symbol)| symbol.len() == len));
        let mut isal = IsalTerms {
            coefficients: terms.iter().map(|&(coefficient, _)| coefficient).collect(),
            tables: vec![0; 32 * terms.len()],
            symbols: terms.iter().map(|(_, symbol)| symbol.as_ptr()).collect(),
            len,
        };
        self.expand_coefficients(&mut isal);
        isal
    }

    /// Expands the coefficients into tables.
    pub(crate) fn expand_coefficients(&self, terms: &mut IsalTerms) {
        let count = to_c_int(terms.coefficients.len());
        // SAFETY: there are 32 bytes of tables for each coefficient.
        unsafe {
            (self.init_tables)(
                count,
                1,
                terms.coefficients.as_ptr(),
                terms.tables.as_mut_ptr(),
            );
        }
    }

    /// Computes the sum of the terms.
    pub(crate) fn dot(&self, result: &mut [u8], terms: &IsalTerms) {
        assert_eq!(result.len(), terms.len);
        // SAFETY: the symbols and the result have `len` bytes. The tables have one entry for each
        // coefficient.
        unsafe {
            (self.dot_product)(
                to_c_int(terms.len),
                to_c_int(terms.symbols.len()),
                terms.tables.as_ptr(),
                terms.symbols.as_ptr(),
                result.as_mut_ptr(),
            );
        }
    }

    /// Computes the same sum with the function for several results.
    #[allow(dead_code)] // only some benchmarks call it
    pub(crate) fn encode(&self, result: &mut [u8], terms: &IsalTerms) {
        assert_eq!(result.len(), terms.len);
        let results = [result.as_mut_ptr()];
        // SAFETY: the symbols and the only result have `len` bytes. The tables have one entry for
        // each coefficient.
        unsafe {
            (self.encode_data)(
                to_c_int(terms.len),
                to_c_int(terms.symbols.len()),
                1,
                terms.tables.as_ptr(),
                terms.symbols.as_ptr(),
                results.as_ptr(),
            );
        }
    }
}

/// Converts a small number to C's `int`.
fn to_c_int(number: usize) -> i32 {
    number.try_into().expect("a small number")
}

/// Returns `count` symbols of `len` random bytes.
pub(crate) fn make_symbols(count: usize, len: usize) -> Vec<Vec<u8>> {
    let mut random = TinyMt32::new(1);
    let mut symbol = || (0..len).map(|_| random.next_256()).collect();
    (0..count).map(|_| symbol()).collect()
}

/// Returns the symbols, each with a non-zero coefficient.
pub(crate) fn make_terms(symbols: &[Vec<u8>]) -> Vec<Term<'_>> {
    let mut random = TinyMt32::new(2);
    symbols
        .iter()
        .map(|symbol| (random.next_nonzero(), &symbol[..]))
        .collect()
}
