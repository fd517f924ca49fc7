//! Joins violated seconds into events. Each violation is one event, with the figures of its worst
//! second, and the cause of the worst second that shows one. Pure.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use crate::sla::cause::Finding;
use crate::sla::judge::Breach;
use crate::sla::{SlaCause, SlaEvent, SlaTerm, SlaWindow};

/// Maximum number of events of a chain. A new event replaces the oldest event.
pub(crate) const MAX_EVENTS: usize = 1000;
/// A violation ends after this number of kept seconds in a row.
const KEPT_SECONDS_TO_END: u32 = 3;

/// The events of one chain.
#[derive(Debug, Default, Clone)]
pub(crate) struct Events {
    list: VecDeque<SlaEvent>,
    open: Option<OpenEvent>,
}

/// The violation in progress. Its event is the last in `list`.
#[derive(Debug, Clone)]
struct OpenEvent {
    worst: f64,
    end: SystemTime,
    kept_seconds: u32,
}

/// A second that violated the contract.
pub(crate) struct Violation<'a> {
    pub(crate) chain: &'a str,
    /// The breaches of the second, the worst first.
    pub(crate) breaches: &'a [Breach],
    pub(crate) second: &'a SlaWindow,
    /// End of the second.
    pub(crate) end: SystemTime,
}

impl Events {
    /// All events, the oldest first.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &SlaEvent> {
        self.list.iter()
    }

    /// The newest event.
    pub(crate) fn last(&self) -> Option<&SlaEvent> {
        self.list.back()
    }

    /// The serial of the violation in progress.
    pub(crate) fn open_serial(&self) -> Option<u64> {
        self.open.as_ref()?;
        self.last().map(|event| event.serial)
    }

    /// Records a violated second. Calls `find_cause` if the second is the worst of its event, or if
    /// no second has shown a cause so far.
    /// Increments `serial` for a new event, which gets that number.
    pub(crate) fn record_violation(
        &mut self,
        violation: &Violation<'_>,
        serial: &mut u64,
        find_cause: impl FnOnce() -> Finding,
    ) {
        let Violation {
            chain,
            breaches,
            second,
            end,
        } = violation;
        let ratio = breaches.iter().map(|breach| breach.ratio);
        let ratio = ratio.fold(0.0, f64::max);
        if self.open.is_none() {
            if self.list.len() == MAX_EVENTS {
                self.list.pop_front();
            }
            *serial += 1;
            let begin = Duration::try_from_secs_f64(second.seconds)
                .ok()
                .and_then(|length| end.checked_sub(length));
            self.list.push_back(SlaEvent {
                serial: *serial,
                chain: (*chain).to_owned(),
                start: format_date(begin.unwrap_or(*end)),
                end: None,
                seconds: 0,
                terms: Vec::new(),
                hop: String::new(),
                cause: SlaCause::Unknown,
                evidence: Vec::new(),
                lost: 0,
                worst_latency_us: None,
                worst_loss_percent: None,
            });
        }
        let Some(event) = self.list.back_mut() else {
            return;
        };
        let is_worst = self.open.as_ref().is_none_or(|open| ratio > open.worst);
        if is_worst || event.cause == SlaCause::Unknown {
            let finding = find_cause();
            // A second without evidence, such as a worker's first one, hides no known cause.
            if finding.cause != SlaCause::Unknown || (is_worst && event.cause == SlaCause::Unknown)
            {
                event.cause = finding.cause;
                event.hop = finding.hop;
                event.evidence = finding.evidence;
            }
        }
        event.seconds += 1;
        event.lost += second.lost.total();
        for breach in *breaches {
            if !event.terms.contains(&breach.term) {
                event.terms.push(breach.term);
                event.terms.sort_unstable();
            }
            let worst = match breach.term {
                SlaTerm::Core => continue,
                SlaTerm::Latency => &mut event.worst_latency_us,
                SlaTerm::Loss => &mut event.worst_loss_percent,
            };
            *worst = Some(worst.map_or(breach.measured, |worst| worst.max(breach.measured)));
        }
        let worst = self
            .open
            .as_ref()
            .map_or(ratio, |open| open.worst.max(ratio));
        self.open = Some(OpenEvent {
            worst,
            end: *end,
            kept_seconds: 0,
        });
    }

    /// Records a second that kept the contract.
    pub(crate) fn record_kept(&mut self) {
        let Some(open) = &mut self.open else {
            return;
        };
        open.kept_seconds += 1;
        if open.kept_seconds == KEPT_SECONDS_TO_END {
            if let Some(event) = self.list.back_mut() {
                event.end = Some(format_date(open.end));
            }
            self.open = None;
        }
    }
}

/// Formats the time as RFC 3339 text.
pub fn format_date(time: SystemTime) -> String {
    humantime::format_rfc3339_millis(time).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(second)
    }

    /// Records a second whose loss is `ratio` times its bound of 1 %. With hop `-` the cause is
    /// unknown.
    fn add_violation(events: &mut Events, serial: &mut u64, second: u64, ratio: f64, hop: &str) {
        let mut window = SlaWindow {
            seconds: 1.0,
            ..SlaWindow::default()
        };
        window.lost.function = 2;
        let breach = Breach {
            term: SlaTerm::Loss,
            measured: ratio,
            ratio,
        };
        let violation = Violation {
            chain: "c",
            breaches: &[breach],
            second: &window,
            end: at(second),
        };
        events.record_violation(&violation, serial, || Finding {
            cause: match hop {
                "-" => SlaCause::Unknown,
                _ => SlaCause::Function,
            },
            hop: hop.to_owned(),
            evidence: vec![hop.to_owned()],
        });
    }

    #[test]
    fn consecutive_violated_seconds_are_one_event_with_its_worst_second() {
        let (mut events, mut serial) = (Events::default(), 5);
        add_violation(&mut events, &mut serial, 10, 3.0, "first");
        add_violation(&mut events, &mut serial, 11, 9.0, "worst");
        add_violation(&mut events, &mut serial, 12, 4.0, "last");
        assert_eq!((events.iter().count(), serial), (1, 6));
        let event = events.last().unwrap().clone();
        assert_eq!((event.serial, event.seconds, event.lost), (6, 3, 6));
        assert_eq!(
            (event.hop.as_str(), event.worst_loss_percent),
            ("worst", Some(9.0))
        );
        assert_eq!(event.start, "1970-01-01T00:00:09.000Z");
        assert_eq!(event.end, None);
        assert_eq!(event.terms, [SlaTerm::Loss]);
    }

    #[test]
    fn an_unknown_cause_neither_stays_nor_hides_a_known_one() {
        let (mut events, mut serial) = (Events::default(), 0);
        for (second, ratio, hop, expected) in [
            (10, 9.0, "-", "-"),
            (11, 3.0, "known", "known"),
            (12, 4.0, "lesser", "known"),
            (13, 12.0, "-", "known"),
            (14, 13.0, "worst", "worst"),
        ] {
            add_violation(&mut events, &mut serial, second, ratio, hop);
            let event = events.last().unwrap();
            assert_eq!(event.hop, expected, "{second}");
            assert_eq!(event.evidence, [expected], "{second}");
        }
    }

    #[test]
    fn a_violation_ends_after_three_kept_seconds() {
        let (mut events, mut serial) = (Events::default(), 0);
        add_violation(&mut events, &mut serial, 10, 3.0, "a");
        events.record_kept();
        events.record_kept();
        add_violation(&mut events, &mut serial, 13, 3.0, "a");
        assert_eq!(events.iter().count(), 1);
        for _ in 0..2 {
            events.record_kept();
            assert_eq!(events.last().unwrap().end, None);
        }
        events.record_kept();
        let end = events.last().unwrap().end.as_deref();
        assert_eq!(end, Some("1970-01-01T00:00:13.000Z"));
        events.record_kept();
        add_violation(&mut events, &mut serial, 20, 1.5, "b");
        let figures: Vec<_> = events
            .iter()
            .map(|event| (event.serial, event.seconds))
            .collect();
        assert_eq!(figures, [(1, 2), (2, 1)]);
        assert_eq!(events.last().unwrap().worst_loss_percent, Some(1.5));
    }

    #[test]
    fn the_oldest_events_are_removed_first() {
        let (mut events, mut serial) = (Events::default(), 0);
        for second in 10..MAX_EVENTS as u64 + 13 {
            add_violation(&mut events, &mut serial, second, 2.0, "a");
            (0..KEPT_SECONDS_TO_END).for_each(|_| events.record_kept());
        }
        assert_eq!(events.iter().count(), MAX_EVENTS);
        assert_eq!(events.iter().next().map(|event| event.serial), Some(4));
    }
}
