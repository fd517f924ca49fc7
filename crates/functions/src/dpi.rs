//! `dpi`: looks for patterns in payloads and drops, marks or mirrors the packets that hold one.
//!
//! Patterns are compiled into automata by Hyperscan or Vectorscan ([`library`]), so a packet costs time in proportion to its length,
//! whatever the patterns and whatever it holds. Each packet is inspected by itself: a pattern that is spread over two is not seen.

pub mod library;
mod mark;
mod mirror;

use std::sync::Arc;

use myelin_spec::{DpiAction, DpiConfig, DpiFragments};

use crate::{Emitter, Function, Packet, Shared, Verdict};
use library::{CompileError, Database, Expression, LibraryError, Scanner};
use mirror::Mirror;

const DROP: u8 = 1;
const MARK: u8 = 2;
const MIRROR: u8 = 4;

/// Why a `dpi` cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The library is not there.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// A pattern cannot be compiled.
    #[error(
        "{file}:{line}: the pattern /{regex}/ cannot be used: {reason}; correct it, or remove it"
    )]
    Pattern {
        /// The file that holds it.
        file: String,
        /// Its line there, from 1.
        line: usize,
        /// The pattern as a regular expression, its beginning if it is long, without control characters.
        regex: String,
        /// What the library says.
        reason: String,
    },
    /// The patterns cannot be compiled together.
    #[error("{count} patterns cannot be compiled together: {reason}; use fewer or simpler ones")]
    Patterns {
        /// How many.
        count: usize,
        /// What the library says.
        reason: String,
    },
    /// There is not enough memory.
    #[error("there is no memory for the compiled patterns; use fewer or simpler ones")]
    Memory,
}

/// Compiled patterns, which generations of a chain share as long as they do not change.
#[derive(Debug)]
pub(crate) struct Patterns(Result<Arc<Database>, Error>);

impl Patterns {
    /// Compiles the patterns of a configuration.
    pub(crate) fn new(config: &DpiConfig) -> Self {
        let expressions: Vec<_> = config
            .patterns()
            .map(|(_, pattern)| Expression {
                regex: &pattern.regex,
                caseless: pattern.caseless,
                multiline: pattern.multiline,
                dotall: pattern.dotall,
                bits: bit(pattern.action),
            })
            .collect();
        let compiled = Database::compile(&expressions);
        Self(
            compiled
                .map(Arc::new)
                .map_err(|error| explain(error, config)),
        )
    }
}

fn bit(action: DpiAction) -> u8 {
    match action {
        DpiAction::Drop => DROP,
        DpiAction::Mark => MARK,
        DpiAction::Mirror => MIRROR,
    }
}

/// Says where the pattern stands that the compiler rejects.
fn explain(error: CompileError, config: &DpiConfig) -> Error {
    let (number, reason) = match error {
        CompileError::Library(error) => return error.into(),
        CompileError::Memory => return Error::Memory,
        CompileError::Expression(number, reason) => (number, reason),
    };
    // The library ends its messages with a full stop, or not.
    let reason = reason.trim_end_matches('.').to_owned();
    match number.and_then(|number| config.patterns().nth(number)) {
        Some((file, pattern)) => Error::Pattern {
            file: file.to_owned(),
            line: pattern.line,
            regex: printable(&pattern.regex),
            reason,
        },
        None => Error::Patterns {
            count: config.patterns().count(),
            reason,
        },
    }
}

/// Text for a message: of bounded length, and unable to steer a terminal.
fn printable(text: &str) -> String {
    const LONGEST: usize = 60;
    let shown = text.chars().take(LONGEST);
    let mut shown: String = shown
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    if text.chars().nth(LONGEST).is_some() {
        shown.push_str("...");
    }
    shown
}

/// Inspects the payload of each packet: that of UDP and TCP, of other packets all that follows the IP header.
///
/// A packet in which patterns are found has the actions of all of them done to it; one that is dropped is not marked. A fragment is dropped
/// unless the configuration lets fragments pass, and so is a packet that the library fails to scan.
#[derive(Debug)]
pub struct Dpi {
    scanner: Scanner,
    /// The actions that decide all: with these found the rest of a payload does not matter.
    enough: u8,
    drops_fragments: bool,
    dscp: u8,
    mirror: Option<Mirror>,
    counters: Counters,
    /// Kept for the next generation, which so need not compile.
    _patterns: Shared<Patterns>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    matched: u64,
    dropped: u64,
    marked: u64,
    mirrored: u64,
    fragments: u64,
    failed: u64,
}

impl Dpi {
    /// The function of that configuration; `patterns` are its own, compiled.
    pub(crate) fn new(config: &DpiConfig, patterns: Shared<Patterns>) -> Result<Self, Error> {
        let compiled = patterns.enter().map(|patterns| patterns.0.clone());
        let database = compiled.unwrap_or(Err(Error::Memory))?;
        let actions = config
            .patterns()
            .fold(0, |actions, (_, pattern)| actions | bit(pattern.action));
        Ok(Self {
            scanner: Scanner::new(database).ok_or(Error::Memory)?,
            // Nobody sees the mark of a packet that is dropped.
            enough: if actions & DROP == 0 {
                actions
            } else {
                actions & !MARK
            },
            drops_fragments: config.fragments == DpiFragments::Drop,
            dscp: config.dscp,
            mirror: config.mirror.map(Mirror::new),
            counters: Counters::default(),
            _patterns: patterns,
        })
    }

    /// Does the actions of the patterns that were found.
    #[cold]
    fn act(&mut self, actions: u8, packet: &mut Packet<'_>, emitter: &mut dyn Emitter) -> Verdict {
        self.counters.matched += 1;
        // The collector is to have the packet as it came.
        if actions & MIRROR != 0
            && let Some(mirror) = &mut self.mirror
            && let Some(copy) = mirror.copy(packet)
        {
            emitter.emit(packet.meta(), copy);
            self.counters.mirrored += 1;
        }
        if actions & DROP != 0 {
            self.counters.dropped += 1;
            return Verdict::Drop;
        }
        if actions & MARK != 0 {
            if mark::set_dscp(packet, self.dscp).is_none() {
                self.counters.failed += 1;
                return Verdict::Drop;
            }
            self.counters.marked += 1;
        }
        Verdict::Forward
    }
}

impl Function for Dpi {
    #[inline]
    fn process(&mut self, packet: &mut Packet<'_>, emitter: &mut dyn Emitter) -> Verdict {
        if self.drops_fragments && packet.headers().flags.is_fragment() {
            self.counters.fragments += 1;
            return Verdict::Drop;
        }
        match self.scanner.scan(packet.payload(), self.enough) {
            Some(0) => Verdict::Forward,
            Some(actions) => self.act(actions, packet, emitter),
            None => {
                self.counters.failed += 1;
                Verdict::Drop
            }
        }
    }

    fn read_counters(&self, sink: &mut dyn FnMut(&'static str, u64)) {
        sink("matched", self.counters.matched);
        sink("matched-dropped", self.counters.dropped);
        sink("marked", self.counters.marked);
        sink("mirrored", self.counters.mirrored);
        sink("fragments-dropped", self.counters.fragments);
        sink("failed-dropped", self.counters.failed);
    }
}

#[cfg(test)]
mod tests {
    use myelin_spec::{FunctionConfig, FunctionInstance, Pattern, PatternList, Side, StateKey};

    use super::*;
    use crate::States;

    #[test]
    fn patterns_are_compiled_anew_only_when_they_change() {
        if let Err(error) = library::version() {
            println!("SKIP: dpi: {error}");
            return;
        }
        let pattern = Pattern {
            line: 1,
            action: DpiAction::Drop,
            regex: "a".to_owned(),
            literal: true,
            caseless: false,
            multiline: false,
            dotall: false,
        };
        let mut config = DpiConfig {
            lists: vec![PatternList {
                file: "file".to_owned(),
                patterns: vec![pattern],
            }],
            fragments: DpiFragments::Pass,
            dscp: 1,
            mirror: None,
        };
        let key = StateKey {
            chain: "ids".to_owned(),
            function: "dpi".to_owned(),
        };
        let mut states = States::default();
        let instance = FunctionInstance {
            config: FunctionConfig::Dpi(config.clone()),
            state: Some(key.clone()),
            side: Side::Forward,
        };
        let _function = states.instantiate(&instance).unwrap();
        let mut compiles = |config: &DpiConfig| {
            let mut compiled = false;
            let shape = FunctionConfig::Dpi(config.shape());
            let patterns = states.get(Some(&key), &shape, || {
                compiled = true;
                Patterns::new(config)
            });
            assert!(patterns.enter().is_some_and(|patterns| patterns.0.is_ok()));
            compiled
        };
        config.fragments = DpiFragments::Drop;
        config.dscp = 2;
        assert!(!compiles(&config));
        config.lists[0].patterns[0].regex = "b".to_owned();
        assert!(compiles(&config));
    }
}
