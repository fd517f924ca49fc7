//! Whether the library finds what is there.
//!
//! Its loops over vector registers are wrong in some releases: Vectorscan 5.4.9 overlooks matches near the end of a buffer where there is
//! AVX-512, and its issue 317 and its pull request 378 tell of others. A filter that overlooks is worse than none, so some kinds of loops
//! are tried here on the processor they shall run on, for every place of a match in buffers of every length up to two registers. That
//! takes some 20 ms, once a process.

use std::sync::Arc;

use super::{Database, Expression, Functions, LibraryError, Scanner};

/// What the buffers are filled with.
const FILLER: u8 = b'a';
/// Lengths to try: past two of the longest registers.
const LENGTHS: usize = 140;

/// Expressions that do not match the filler, and what they match.
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

/// Tries all cases; the error names the first that goes wrong.
pub(super) fn run(functions: &'static Functions) -> Result<(), LibraryError> {
    CASES.iter().try_for_each(|(expressions, needle)| {
        let wrong = || LibraryError::Faulty {
            version: functions.version(),
            regex: expressions.join(" | "),
        };
        let expressions: Vec<_> = expressions.iter().map(|regex| expression(regex)).collect();
        let database = Database::compile_with(functions, &expressions).map_err(|_| wrong())?;
        let mut scanner = Scanner::new(Arc::new(database)).ok_or_else(wrong)?;
        if finds_everywhere(&mut scanner, needle) {
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

fn finds_everywhere(scanner: &mut Scanner, needle: &[u8]) -> bool {
    let mut buffer = [FILLER; LENGTHS];
    (needle.len()..=LENGTHS).all(|length| {
        let nothing = scanner.scan(&buffer[..length], 1) == Some(0);
        let everywhere = (0..=length - needle.len()).all(|at| {
            let place = at..at + needle.len();
            buffer[place.clone()].copy_from_slice(needle);
            let found = scanner.scan(&buffer[..length], 1) == Some(1);
            buffer[place].fill(FILLER);
            found
        });
        nothing && everywhere
    })
}
