//! Checks that the library finds all matches.
//!
//! Some releases have wrong loops over vector registers. Vectorscan 5.4.9 misses matches near the
//! end of a buffer on processors with AVX-512; Vectorscan's issue 317 and pull request 378 describe
//! other cases. A filter that misses matches is worse than no filter, so this check runs several
//! kinds of loops on this processor. The check tries every offset of a match in buffers of every
//! length up to two registers. It takes about 20 ms, once per process.

use std::sync::Arc;

use super::{Database, Expression, HyperscanApi, LibraryError, Scanner};

/// The byte that fills the buffers.
const FILLER: u8 = b'a';
/// The longest buffer to check, bytes: longer than two of the longest registers.
const LENGTHS: usize = 140;

/// Lists of expressions that do not match the filler, each with a text that matches.
const CASES: &[(&[&str], &[u8])] = &[
    (&["f"], b"f"),
    (&["\\xff"], b"\xff"),
    (&["fg"], b"fg"),
    (&["fghij"], b"fghij"),
    (&["[f-h]"], b"h"),
    (&["[fhk]m"], b"km"),
    (&["[^a]"], b"b"),
    (&["^a*[^a]"], b"b"),
    (&["^[abc]*[fq]"], b"f"),
    (&["f.?g+h"], b"fxgh"),
    (&["^(?:ab)*a*f"], b"f"),
    (&["fgh", "klm", "xyzzy"], b"klm"),
    (&["fgh[0-9]", "k.*l", "^[^f]+q"], b"fgh7"),
];

/// Checks all cases. The error names the first case that fails.
pub(super) fn check_library(functions: &'static HyperscanApi) -> Result<(), LibraryError> {
    CASES.iter().try_for_each(|(expressions, needle)| {
        let wrong = || LibraryError::Faulty {
            version: functions.version(),
            regex: expressions.join(" | "),
        };
        let expressions: Vec<_> = expressions.iter().map(|regex| expression(regex)).collect();
        let database = Database::compile_with(functions, &expressions).map_err(|_| wrong())?;
        let mut scanner = Scanner::new(Arc::new(database)).ok_or_else(wrong)?;
        if finds_needle_at_every_offset(&mut scanner, needle) {
            Ok(())
        } else {
            Err(wrong())
        }
    })
}

fn expression(regex: &str) -> Expression<'_> {
    Expression {
        regex,
        caseless: false,
        multiline: false,
        dotall: false,
        bits: 1,
    }
}

fn finds_needle_at_every_offset(scanner: &mut Scanner, needle: &[u8]) -> bool {
    let mut buffer = [FILLER; LENGTHS];
    (needle.len()..=LENGTHS).all(|length| {
        let nothing = scanner.scan(&buffer[..length], 1) == Some(0);
        let everywhere = (0..=length - needle.len()).all(|at| {
            let range = at..at + needle.len();
            buffer[range.clone()].copy_from_slice(needle);
            let found = scanner.scan(&buffer[..length], 1) == Some(1);
            buffer[range].fill(FILLER);
            found
        });
        nothing && everywhere
    })
}
