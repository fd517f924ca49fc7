//! The C interface `hs.h`, which Hyperscan and Vectorscan share.
//!
//! This module loads the library at its first use and never unloads it. Without a `dpi` function,
//! the library need not be installed.
//!
//! No code writes to a [`Database`] after its compilation, so threads may share a database. A
//! scratch space belongs to one [`Scanner`], which each scan borrows mutably.

mod check;

use std::error::Error;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::ptr::{NonNull, null, null_mut};
use std::sync::{Arc, OnceLock};

use libloading::Library;

/// File name of both libraries.
const SONAME: &str = "libhs.so.5";

const HS_SUCCESS: c_int = 0;
const HS_SCAN_TERMINATED: c_int = -3;
const HS_MODE_BLOCK: c_uint = 1;
const HS_FLAG_CASELESS: c_uint = 1;
const HS_FLAG_DOTALL: c_uint = 2;
const HS_FLAG_MULTILINE: c_uint = 4;
const HS_FLAG_SINGLEMATCH: c_uint = 8;

/// The reason why this machine cannot use the library.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LibraryError {
    /// The library is not installed, or cannot be loaded.
    #[error(
        "{SONAME} cannot be loaded: {cause}; install the package libhyperscan5, or libvectorscan5 if the distribution has no libhyperscan5"
    )]
    Absent {
        /// The loader's message.
        cause: String,
    },
    /// The processor lacks instructions that the library needs.
    #[error(
        "{SONAME} does not run on this processor, which lacks instructions that the library needs (SSSE3 on x86); run the chain on another machine, or without `dpi`"
    )]
    Processor,
    /// The library misses matches.
    #[error(
        "{SONAME} {version} is faulty on this processor: the library misses matches of {regex} at some offsets; install libhyperscan5, or another release"
    )]
    Faulty {
        /// The version that the library reports.
        version: String,
        /// The regular expressions of the failed check.
        regex: String,
    },
}

/// The reason why the library did not compile expressions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompileError {
    /// The library is not installed.
    Library(LibraryError),
    /// The library refused an expression, with this index from 0, or all together (`None`). The
    /// text is the library's message.
    Expression(Option<usize>, String),
    /// Memory is short.
    Memory,
}

/// A pattern to search for.
#[derive(Clone, Copy, Debug)]
pub struct Expression<'a> {
    /// PCRE syntax, over bytes.
    pub regex: &'a str,
    /// Whether letters match in either case.
    pub caseless: bool,
    /// Whether `^` and `$` also match at line breaks.
    pub multiline: bool,
    /// Whether `.` also matches a line break.
    pub dotall: bool,
    /// Bits that report a match. Several expressions may share a bit.
    pub bits: u8,
}

#[repr(C)]
struct RawDatabase {
    _opaque: [u8; 0],
}

#[repr(C)]
struct RawScratch {
    _opaque: [u8; 0],
}

/// `hs_compile_error_t`.
#[repr(C)]
struct RawError {
    message: *const c_char,
    expression: c_int,
}

type OnMatch = unsafe extern "C" fn(c_uint, c_ulonglong, c_ulonglong, c_uint, *mut c_void) -> c_int;

/// The functions of `hs.h` that this crate calls.
#[derive(Debug)]
struct HyperscanApi {
    version: unsafe extern "C" fn() -> *const c_char,
    compile: unsafe extern "C" fn(
        *const *const c_char,
        *const c_uint,
        *const c_uint,
        c_uint,
        c_uint,
        *const c_void,
        *mut *mut RawDatabase,
        *mut *mut RawError,
    ) -> c_int,
    free_error: unsafe extern "C" fn(*mut RawError) -> c_int,
    free_database: unsafe extern "C" fn(*mut RawDatabase) -> c_int,
    allocate_scratch: unsafe extern "C" fn(*const RawDatabase, *mut *mut RawScratch) -> c_int,
    free_scratch: unsafe extern "C" fn(*mut RawScratch) -> c_int,
    scan: unsafe extern "C" fn(
        *const RawDatabase,
        *const c_char,
        c_uint,
        c_uint,
        *mut RawScratch,
        OnMatch,
        *mut c_void,
    ) -> c_int,
    /// Keeps the library loaded as long as these pointers exist.
    _library: Library,
}

impl HyperscanApi {
    fn load() -> Result<Self, LibraryError> {
        // The loader's message is the source of the error.
        let absent = |error: libloading::Error| LibraryError::Absent {
            cause: error
                .source()
                .map_or_else(|| error.to_string(), ToString::to_string),
        };
        // SAFETY: the library's initialisers only start the C++ run time and select instructions.
        let library = unsafe { Library::new(SONAME) }.map_err(absent)?;
        // SAFETY: the types are those that `hs.h` declares. The library stays loaded as long as the
        // functions exist.
        let functions = unsafe {
            let valid: unsafe extern "C" fn() -> c_int =
                *library.get("hs_valid_platform").map_err(absent)?;
            if valid() != HS_SUCCESS {
                return Err(LibraryError::Processor);
            }
            Self {
                version: *library.get("hs_version").map_err(absent)?,
                compile: *library.get("hs_compile_multi").map_err(absent)?,
                free_error: *library.get("hs_free_compile_error").map_err(absent)?,
                free_database: *library.get("hs_free_database").map_err(absent)?,
                allocate_scratch: *library.get("hs_alloc_scratch").map_err(absent)?,
                free_scratch: *library.get("hs_free_scratch").map_err(absent)?,
                scan: *library.get("hs_scan").map_err(absent)?,
                _library: library,
            }
        };
        Ok(functions)
    }

    /// Loads and checks the library at the first call.
    fn load_checked() -> Result<&'static Self, LibraryError> {
        static LOADED: OnceLock<Result<HyperscanApi, LibraryError>> = OnceLock::new();
        static CHECKED: OnceLock<Result<(), LibraryError>> = OnceLock::new();
        let functions = LOADED.get_or_init(Self::load).as_ref();
        let functions = functions.map_err(Clone::clone)?;
        CHECKED
            .get_or_init(|| check::check_library(functions))
            .clone()?;
        Ok(functions)
    }

    fn version(&self) -> String {
        // SAFETY: the library returns a constant terminated string.
        let version = unsafe { CStr::from_ptr((self.version)()) };
        version.to_string_lossy().trim_end().to_owned()
    }
}

/// Returns the version of the library that `dpi` functions use here.
///
/// # Errors
/// The library is not installed or fails its check. The message names the cause and the package to
/// install.
pub fn version() -> Result<String, LibraryError> {
    HyperscanApi::load_checked().map(HyperscanApi::version)
}

/// Compiled expressions.
#[derive(Debug)]
pub struct Database {
    functions: &'static HyperscanApi,
    raw: NonNull<RawDatabase>,
    /// Indexed by expression.
    bits: Box<[u8]>,
}

// SAFETY: a database does not depend on a thread.
unsafe impl Send for Database {}
// SAFETY: no code writes to a database: scans and the allocation of scratch space take it as
// constant.
unsafe impl Sync for Database {}

impl Database {
    /// Compiles expressions for this processor.
    pub fn compile(expressions: &[Expression<'_>]) -> Result<Self, CompileError> {
        let functions = HyperscanApi::load_checked().map_err(CompileError::Library)?;
        Self::compile_with(functions, expressions)
    }

    fn compile_with(
        functions: &'static HyperscanApi,
        expressions: &[Expression<'_>],
    ) -> Result<Self, CompileError> {
        let texts: Vec<CString> = expressions
            .iter()
            .enumerate()
            .map(|(number, expression)| {
                CString::new(expression.regex).map_err(|_| {
                    CompileError::Expression(
                        Some(number),
                        "the expression contains a null character".to_owned(),
                    )
                })
            })
            .collect::<Result<_, _>>()?;
        let pointers: Vec<_> = texts.iter().map(|text| text.as_ptr()).collect();
        let flags: Vec<_> = expressions.iter().map(compile_flags).collect();
        // Each expression gets its own number, because with a shared number the compile time grows
        // with the square of the number of expressions.
        let ids: Vec<c_uint> = (0..).take(expressions.len()).collect();
        let (mut raw, mut error) = (null_mut(), null_mut());
        // SAFETY: three lists of the given length: terminated strings, flags and numbers. A null
        // platform means this machine.
        unsafe {
            (functions.compile)(
                pointers.as_ptr(),
                flags.as_ptr(),
                ids.as_ptr(),
                ids.len() as c_uint,
                HS_MODE_BLOCK,
                null(),
                &raw mut raw,
                &raw mut error,
            );
        }
        match NonNull::new(raw) {
            Some(raw) => Ok(Self {
                functions,
                raw,
                bits: expressions
                    .iter()
                    .map(|expression| expression.bits)
                    .collect(),
            }),
            None => Err(functions.read_and_free_error(error)),
        }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // SAFETY: the library made the database, and no scanner uses it any more.
        unsafe { (self.functions.free_database)(self.raw.as_ptr()) };
    }
}

fn compile_flags(expression: &Expression<'_>) -> c_uint {
    let flag = |given, flag| if given { flag } else { 0 };
    HS_FLAG_SINGLEMATCH
        | flag(expression.caseless, HS_FLAG_CASELESS)
        | flag(expression.multiline, HS_FLAG_MULTILINE)
        | flag(expression.dotall, HS_FLAG_DOTALL)
}

impl HyperscanApi {
    /// Reads an error of the compiler and frees it.
    fn read_and_free_error(&self, error: *mut RawError) -> CompileError {
        // SAFETY: null, or an error that the library made and that is not yet freed.
        let Some(compile_error) = (unsafe { error.as_ref() }) else {
            return CompileError::Memory;
        };
        let message = if compile_error.message.is_null() {
            "the library gave no reason".to_owned()
        } else {
            // SAFETY: a terminated string that lives as long as the error.
            let message = unsafe { CStr::from_ptr(compile_error.message) };
            message.to_string_lossy().into_owned()
        };
        let expression = usize::try_from(compile_error.expression).ok();
        // SAFETY: the library made the error. No code uses it after this line.
        unsafe { (self.free_error)(error) };
        CompileError::Expression(expression, message)
    }
}

/// Searches for the expressions of a database, with its own scratch memory.
#[derive(Debug)]
pub struct Scanner {
    database: Arc<Database>,
    scratch: NonNull<RawScratch>,
}

// SAFETY: scratch space does not depend on a thread, and is only used through `&mut self`.
unsafe impl Send for Scanner {}

/// The result of a scan so far.
struct ScanProgress<'a> {
    bits: &'a [u8],
    found: u8,
    decisive: u8,
}

impl Scanner {
    /// Makes a scanner for the database. Returns `None` if memory is short.
    pub fn new(database: Arc<Database>) -> Option<Self> {
        let mut scratch = null_mut();
        // SAFETY: a database of the library, and a pointer to receive the new scratch space.
        unsafe {
            (database.functions.allocate_scratch)(database.raw.as_ptr(), &raw mut scratch);
        }
        let scratch = NonNull::new(scratch)?;
        Some(Self { database, scratch })
    }

    /// Returns the bits of the expressions found in `bytes`. The scan stops when it has found all
    /// bits of `decisive`; other bits may then be missing. Returns `None` if the library fails.
    #[inline]
    pub fn scan(&mut self, bytes: &[u8], decisive: u8) -> Option<u8> {
        let mut found = ScanProgress {
            bits: &self.database.bits,
            found: 0,
            decisive,
        };
        let length = c_uint::try_from(bytes.len()).ok()?;
        // SAFETY: a database, `length` bytes, and scratch space made for this database, which no
        // other scan uses now. The library calls `on_match` only during this call, with the only
        // pointer to `found`.
        let result = unsafe {
            (self.database.functions.scan)(
                self.database.raw.as_ptr(),
                bytes.as_ptr().cast(),
                length,
                0,
                self.scratch.as_ptr(),
                on_match,
                (&raw mut found).cast(),
            )
        };
        matches!(result, HS_SUCCESS | HS_SCAN_TERMINATED).then_some(found.found)
    }
}

impl Drop for Scanner {
    fn drop(&mut self) {
        // SAFETY: the library made the scratch space, and no scan is running.
        unsafe { (self.database.functions.free_scratch)(self.scratch.as_ptr()) };
    }
}

/// Records a match. A result other than 0 ends the scan.
unsafe extern "C" fn on_match(
    id: c_uint,
    _from: c_ulonglong,
    _to: c_ulonglong,
    _flags: c_uint,
    context: *mut c_void,
) -> c_int {
    // SAFETY: only `scan` makes the library call this function, with this context.
    let found = unsafe { &mut *context.cast::<ScanProgress<'_>>() };
    found.found |= found.bits.get(id as usize).copied().unwrap_or_default();
    c_int::from(found.found & found.decisive == found.decisive)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expression(regex: &str, bits: u8) -> Expression<'_> {
        Expression {
            regex,
            caseless: false,
            multiline: false,
            dotall: false,
            bits,
        }
    }

    fn is_installed() -> bool {
        let version = version();
        if let Err(error) = &version {
            println!("SKIP: dpi: {error}");
        }
        version.is_ok()
    }

    #[test]
    fn finds_all_matches_until_the_decisive_ones() {
        if !is_installed() {
            return;
        }
        let expressions = [
            expression("ab", 1),
            expression("c+d", 2),
            expression("z", 4),
        ];
        let database = Arc::new(Database::compile(&expressions).unwrap());
        let mut scanner = Scanner::new(Arc::clone(&database)).unwrap();
        let mut second = Scanner::new(database).unwrap();
        for (bytes, decisive, expected) in [
            (&b""[..], 7, 0),
            (b"a-b", 7, 0),
            (b"--ab--", 7, 1),
            (b"ab--ccd", 7, 3),
            (b"ab--ccd", 1, 1),
            (b"zzab", 7, 5),
            (b"\0\xff", 7, 0),
        ] {
            assert_eq!(scanner.scan(bytes, decisive), Some(expected), "{bytes:?}");
            assert_eq!(second.scan(bytes, decisive), Some(expected), "{bytes:?}");
        }
    }

    #[test]
    fn error_names_the_bad_expression_and_the_reason() {
        if !is_installed() {
            return;
        }
        let error = Database::compile(&[expression("a", 1), expression("b(", 1)]).unwrap_err();
        let CompileError::Expression(Some(1), message) = error else {
            panic!("{error:?}");
        };
        assert!(message.contains("parenthes"), "{message}");
        let nothing = Database::compile(&[]).unwrap_err();
        assert!(matches!(nothing, CompileError::Expression(None, _)));
        let null = Database::compile(&[expression("a\0", 1)]).unwrap_err();
        assert!(matches!(null, CompileError::Expression(Some(0), _)));
    }
}
