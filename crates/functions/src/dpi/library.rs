//! The border to C: Hyperscan, or Vectorscan, which has the same interface (`hs.h` of either).
//!
//! The library is loaded when it is first asked for and never unloaded, so nothing else needs it to be there.
//!
//! What makes the types safe: a [`Database`] is never written once it is compiled, so threads may share it; a scratch space belongs to
//! one [`Scanner`], which lends itself mutably for each scan.

mod check;

use std::error::Error;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::ptr::{NonNull, null, null_mut};
use std::sync::{Arc, OnceLock};

use libloading::Library;

/// What both libraries are called.
const SONAME: &str = "libhs.so.5";

const HS_SUCCESS: c_int = 0;
const HS_SCAN_TERMINATED: c_int = -3;
const HS_MODE_BLOCK: c_uint = 1;
const HS_FLAG_CASELESS: c_uint = 1;
const HS_FLAG_DOTALL: c_uint = 2;
const HS_FLAG_MULTILINE: c_uint = 4;
const HS_FLAG_SINGLEMATCH: c_uint = 8;

/// Why the library cannot be used here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LibraryError {
    /// It is not installed, or cannot be loaded.
    #[error(
        "{SONAME} cannot be loaded: {cause}; install the package libhyperscan5, or libvectorscan5 where there is none"
    )]
    Absent {
        /// What the loader says.
        cause: String,
    },
    /// It needs instructions that the processor lacks.
    #[error(
        "{SONAME} does not run on this processor, which lacks instructions that it needs (SSSE3 on x86)"
    )]
    Processor,
    /// It overlooks what is there.
    #[error(
        "{SONAME} {version} is faulty on this processor: it does not find {regex} wherever it is; install libhyperscan5, or another release"
    )]
    Faulty {
        /// Which one it is, as it calls itself.
        version: String,
        /// The regular expressions that tell.
        regex: String,
    },
}

/// Why expressions cannot be compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompileError {
    /// The library is not there.
    Library(LibraryError),
    /// An expression, by its number from 0, or all together; and what the library says.
    Expression(Option<usize>, String),
    /// There is no memory for it.
    Memory,
}

/// What is looked for.
#[derive(Clone, Copy, Debug)]
pub struct Expression<'a> {
    /// In PCRE's syntax, over bytes.
    pub regex: &'a str,
    /// Whether letters match in either case.
    pub caseless: bool,
    /// Whether `^` and `$` match at line breaks too.
    pub multiline: bool,
    /// Whether `.` matches a line break too.
    pub dotall: bool,
    /// Bits that tell that it was found; others may have the same.
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

/// The functions of `hs.h` that are used.
#[derive(Debug)]
struct Functions {
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
    /// What they are the functions of.
    _library: Library,
}

impl Functions {
    fn load() -> Result<Self, LibraryError> {
        // What the loader says is the source of the error.
        let absent = |error: libloading::Error| LibraryError::Absent {
            cause: error
                .source()
                .map_or_else(|| error.to_string(), ToString::to_string),
        };
        // SAFETY: the initialisers of the library are those of the C++ run time and of its choice of instructions.
        let library = unsafe { Library::new(SONAME) }.map_err(absent)?;
        // SAFETY: the types are those that `hs.h` declares the functions with; the library is held as long as they are.
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

    /// Loaded, and tried, when it is first asked for.
    fn get() -> Result<&'static Self, LibraryError> {
        static LOADED: OnceLock<Result<Functions, LibraryError>> = OnceLock::new();
        static CHECKED: OnceLock<Result<(), LibraryError>> = OnceLock::new();
        let functions = LOADED.get_or_init(Self::load).as_ref();
        let functions = functions.map_err(Clone::clone)?;
        CHECKED.get_or_init(|| check::run(functions)).clone()?;
        Ok(functions)
    }

    fn version(&self) -> String {
        // SAFETY: a constant string of the library.
        let version = unsafe { CStr::from_ptr((self.version)()) };
        version.to_string_lossy().trim_end().to_owned()
    }
}

/// Which library a `dpi` would use here, as it calls itself.
///
/// # Errors
/// It is not there, or not to be trusted: the message says why, and what to install.
pub fn version() -> Result<String, LibraryError> {
    Functions::get().map(Functions::version)
}

/// Compiled expressions.
#[derive(Debug)]
pub struct Database {
    functions: &'static Functions,
    raw: NonNull<RawDatabase>,
    /// By expression.
    bits: Box<[u8]>,
}

// SAFETY: it belongs to no thread.
unsafe impl Send for Database {}
// SAFETY: nobody writes to it: scanning and making scratch space for it take it as constant.
unsafe impl Sync for Database {}

impl Database {
    /// Compiles expressions for this processor.
    pub fn compile(expressions: &[Expression<'_>]) -> Result<Self, CompileError> {
        let functions = Functions::get().map_err(CompileError::Library)?;
        Self::compile_with(functions, expressions)
    }

    fn compile_with(
        functions: &'static Functions,
        expressions: &[Expression<'_>],
    ) -> Result<Self, CompileError> {
        let texts: Vec<CString> = expressions
            .iter()
            .enumerate()
            .map(|(number, expression)| {
                CString::new(expression.regex).map_err(|_| {
                    CompileError::Expression(Some(number), "it holds a null character".to_owned())
                })
            })
            .collect::<Result<_, _>>()?;
        let pointers: Vec<_> = texts.iter().map(|text| text.as_ptr()).collect();
        let flags: Vec<_> = expressions.iter().map(flags).collect();
        // Each its own: the time to compile expressions that share one grows with the square of their number.
        let ids: Vec<c_uint> = (0..).take(expressions.len()).collect();
        let (mut raw, mut error) = (null_mut(), null_mut());
        // SAFETY: three lists of the length that is told, of terminated strings, flags and numbers; a null platform is this machine's.
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
            None => Err(functions.take_error(error)),
        }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // SAFETY: it came from the library, and no scanner uses it any more.
        unsafe { (self.functions.free_database)(self.raw.as_ptr()) };
    }
}

fn flags(expression: &Expression<'_>) -> c_uint {
    let flag = |given, flag| if given { flag } else { 0 };
    HS_FLAG_SINGLEMATCH
        | flag(expression.caseless, HS_FLAG_CASELESS)
        | flag(expression.multiline, HS_FLAG_MULTILINE)
        | flag(expression.dotall, HS_FLAG_DOTALL)
}

impl Functions {
    /// Reads an error of the compiler and frees it.
    fn take_error(&self, error: *mut RawError) -> CompileError {
        // SAFETY: null, or an error that the library made and nobody freed.
        let Some(held) = (unsafe { error.as_ref() }) else {
            return CompileError::Memory;
        };
        let message = if held.message.is_null() {
            "no reason is given".to_owned()
        } else {
            // SAFETY: a terminated string that lives as long as the error.
            let message = unsafe { CStr::from_ptr(held.message) };
            message.to_string_lossy().into_owned()
        };
        let expression = usize::try_from(held.expression).ok();
        // SAFETY: as above; it is not used any more.
        unsafe { (self.free_error)(error) };
        CompileError::Expression(expression, message)
    }
}

/// Looks for the expressions of a database, with memory of its own.
#[derive(Debug)]
pub struct Scanner {
    database: Arc<Database>,
    scratch: NonNull<RawScratch>,
}

// SAFETY: scratch space belongs to no thread; it is used through `&mut self` alone.
unsafe impl Send for Scanner {}

/// What a scan has found so far.
struct Found<'a> {
    bits: &'a [u8],
    found: u8,
    enough: u8,
}

impl Scanner {
    /// A scanner for the database; `None` without memory for it.
    pub fn new(database: Arc<Database>) -> Option<Self> {
        let mut scratch = null_mut();
        // SAFETY: a database of the library and a place for the new scratch space.
        unsafe {
            (database.functions.allocate_scratch)(database.raw.as_ptr(), &raw mut scratch);
        }
        let scratch = NonNull::new(scratch)?;
        Some(Self { database, scratch })
    }

    /// The bits of the expressions that `bytes` hold; once all of `enough` are among them others may be missing. `None` when the
    /// library fails.
    #[inline]
    pub fn scan(&mut self, bytes: &[u8], enough: u8) -> Option<u8> {
        let mut found = Found {
            bits: &self.database.bits,
            found: 0,
            enough,
        };
        let length = c_uint::try_from(bytes.len()).ok()?;
        // SAFETY: a database, as many bytes as are told, and scratch space that was made for this database and that nobody else uses
        // now; `on_match` is called before this returns, with a pointer to `found`, which nobody else has.
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
        // SAFETY: it came from the library, and no scan runs.
        unsafe { (self.database.functions.free_scratch)(self.scratch.as_ptr()) };
    }
}

/// Notes an expression that was found; not 0 ends the scan.
unsafe extern "C" fn on_match(
    id: c_uint,
    _from: c_ulonglong,
    _to: c_ulonglong,
    _flags: c_uint,
    context: *mut c_void,
) -> c_int {
    // SAFETY: `scan` alone has the library call this, and gives it this context.
    let found = unsafe { &mut *context.cast::<Found<'_>>() };
    found.found |= found.bits.get(id as usize).copied().unwrap_or_default();
    c_int::from(found.found & found.enough == found.enough)
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

    fn is_here() -> bool {
        let version = version();
        if let Err(error) = &version {
            println!("SKIP: dpi: {error}");
        }
        version.is_ok()
    }

    #[test]
    fn finds_what_is_there_until_it_is_enough() {
        if !is_here() {
            return;
        }
        let expressions = [
            expression("ab", 1),
            expression("c+d", 2),
            expression("z", 4),
        ];
        let database = Arc::new(Database::compile(&expressions).unwrap());
        let mut scanner = Scanner::new(Arc::clone(&database)).unwrap();
        let mut twin = Scanner::new(database).unwrap();
        for (bytes, enough, expected) in [
            (&b""[..], 7, 0),
            (b"a-b", 7, 0),
            (b"--ab--", 7, 1),
            (b"ab--ccd", 7, 3),
            (b"ab--ccd", 1, 1),
            (b"zzab", 7, 5),
            (b"\0\xff", 7, 0),
        ] {
            assert_eq!(scanner.scan(bytes, enough), Some(expected), "{bytes:?}");
            assert_eq!(twin.scan(bytes, enough), Some(expected), "{bytes:?}");
        }
    }

    #[test]
    fn says_which_expression_is_bad_and_why() {
        if !is_here() {
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
