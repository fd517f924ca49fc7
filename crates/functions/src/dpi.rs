//! `dpi`: searches payloads for patterns, and drops, marks or mirrors the packets with a match.
//!
//! Hyperscan or Vectorscan ([`library`]) compiles the patterns into automata, so the cost of a
//! packet is proportional to its length, for all patterns and contents. The function inspects each
//! packet separately, so it does not find a pattern that spans two packets.

pub mod library;
mod mark;
mod mirror;

use std::sync::Arc;

use myelin_spec::{DpiAction, DpiConfig, DpiFragments};

use crate::{Emitter, Function, Packet, SharedState, Verdict};
use library::{CompileError, Database, Expression, LibraryError, Scanner};
use mirror::Mirror;

const DROP: u8 = 1;
const MARK: u8 = 2;
const MIRROR: u8 = 4;

/// The reason why a `dpi` function could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The library is not installed.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// A pattern cannot be compiled.
    #[error(
        "{file}:{line}: the pattern /{regex}/ cannot be used: {reason}; correct or remove the pattern"
    )]
    Pattern {
        /// The file of the pattern.
        file: String,
        /// The line in the file, from 1.
        line: usize,
        /// The start of the regular expression, without control characters.
        regex: String,
        /// The library's message.
        reason: String,
    },
    /// The patterns cannot be compiled together.
    #[error(
        "{count} patterns cannot be compiled together: {reason}; use fewer or simpler patterns"
    )]
    Patterns {
        /// Number of patterns.
        count: usize,
        /// The library's message.
        reason: String,
    },
    /// Memory is short.
    #[error("there is no memory for the compiled patterns; use fewer or simpler patterns")]
    Memory,
}

/// Compiled patterns. Generations of a chain share them until the patterns change.
#[derive(Debug)]
pub(crate) struct CompiledPatterns(Result<Arc<Database>, Error>);

impl CompiledPatterns {
    /// Compiles the patterns of a configuration.
    pub(crate) fn new(config: &DpiConfig) -> Self {
        let expressions: Vec<_> = config
            .patterns()
            .map(|(_, pattern)| Expression {
                regex: &pattern.regex,
                caseless: pattern.caseless,
                multiline: pattern.multiline,
                dotall: pattern.dotall,
                bits: action_bit(pattern.action),
            })
            .collect();
        let compiled = Database::compile(&expressions);
        Self(
            compiled
                .map(Arc::new)
                .map_err(|error| locate_error(error, config)),
        )
    }
}

fn action_bit(action: DpiAction) -> u8 {
    match action {
        DpiAction::Drop => DROP,
        DpiAction::Mark => MARK,
        DpiAction::Mirror => MIRROR,
    }
}

/// Adds the file and line of the pattern that the compiler rejects.
fn locate_error(error: CompileError, config: &DpiConfig) -> Error {
    let (number, reason) = match error {
        CompileError::Library(error) => return error.into(),
        CompileError::Memory => return Error::Memory,
        CompileError::Expression(number, reason) => (number, reason),
    };
    // Some messages of the library end with a full stop.
    let reason = reason.trim_end_matches('.').to_owned();
    match number.and_then(|number| config.patterns().nth(number)) {
        Some((file, pattern)) => Error::Pattern {
            file: file.to_owned(),
            line: pattern.line,
            regex: make_printable(&pattern.regex),
            reason,
        },
        None => Error::Patterns {
            count: config.patterns().count(),
            reason,
        },
    }
}

/// Shortens text for a message and removes control characters, which could control a terminal.
fn make_printable(text: &str) -> String {
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

/// Inspects the payload of each packet: the UDP or TCP payload, or all bytes after the IP header.
///
/// The function applies the actions of all matching patterns to a packet, but does not mark a
/// packet that it drops. It drops fragments unless the configuration forwards them, and packets
/// that the library fails to scan.
#[derive(Debug)]
pub struct Dpi {
    scanner: Scanner,
    /// The actions that decide the verdict. The scan can stop when it has found all of them.
    decisive: u8,
    drops_fragments: bool,
    dscp: u8,
    mirror: Option<Mirror>,
    counters: DpiCounters,
    /// Keeps the compiled patterns, so that the next generation does not compile them again.
    _patterns: SharedState<CompiledPatterns>,
}

#[derive(Clone, Copy, Debug, Default)]
struct DpiCounters {
    matched: u64,
    dropped: u64,
    marked: u64,
    mirrored: u64,
    fragments: u64,
    failed: u64,
}

impl Dpi {
    /// Makes the function with this configuration and its compiled patterns.
    pub(crate) fn new(
        config: &DpiConfig,
        patterns: SharedState<CompiledPatterns>,
    ) -> Result<Self, Error> {
        let compiled = patterns.try_borrow().map(|patterns| patterns.0.clone());
        let database = compiled.unwrap_or(Err(Error::Memory))?;
        let actions = config.patterns().fold(0, |actions, (_, pattern)| {
            actions | action_bit(pattern.action)
        });
        Ok(Self {
            scanner: Scanner::new(database).ok_or(Error::Memory)?,
            // A mark on a dropped packet has no effect.
            decisive: if actions & DROP == 0 {
                actions
            } else {
                actions & !MARK
            },
            drops_fragments: config.fragments == DpiFragments::Drop,
            dscp: config.dscp,
            mirror: config.mirror.map(Mirror::new),
            counters: DpiCounters::default(),
            _patterns: patterns,
        })
    }

    /// Applies the actions of the matching patterns.
    #[cold]
    fn apply_actions(
        &mut self,
        actions: u8,
        packet: &mut Packet<'_>,
        emitter: &mut dyn Emitter,
    ) -> Verdict {
        self.counters.matched += 1;
        // Mirror first, so that the collector gets the packet unchanged.
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
        match self.scanner.scan(packet.payload(), self.decisive) {
            Some(0) => Verdict::Forward,
            Some(actions) => self.apply_actions(actions, packet, emitter),
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
    fn patterns_are_recompiled_only_after_a_change() {
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
        let mut recompiles = |config: &DpiConfig| {
            let mut compiled = false;
            let shape = FunctionConfig::Dpi(config.state_config());
            let patterns = states.get_or_create(Some(&key), &shape, || {
                compiled = true;
                CompiledPatterns::new(config)
            });
            assert!(
                patterns
                    .try_borrow()
                    .is_some_and(|patterns| patterns.0.is_ok())
            );
            compiled
        };
        config.fragments = DpiFragments::Drop;
        config.dscp = 2;
        assert!(!recompiles(&config));
        config.lists[0].patterns[0].regex = "b".to_owned();
        assert!(recompiles(&config));
    }
}
