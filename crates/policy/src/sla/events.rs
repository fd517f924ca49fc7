//! A chain's violations as events: one for each that lasts, with its worst second. Pure.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use crate::sla::cause::Finding;
use crate::sla::judge::Breach;
use crate::sla::{SlaEvent, SlaTerm, SlaWindow};

/// Most events that are kept of a chain; older ones go.
pub(crate) const MOST: usize = 1000;
/// Seconds in a row that must be kept before a violation is over.
const CALM: u32 = 3;

/// The events of one chain.
#[derive(Debug, Default)]
pub(crate) struct Events {
    all: VecDeque<SlaEvent>,
    lasting: Option<Lasting>,
}

/// A violation that is not over; it is the last of all.
#[derive(Debug)]
struct Lasting {
    worst: f64,
    end: SystemTime,
    calm: u32,
}

/// A second that violated the contract.
pub(crate) struct Violation<'a> {
    pub(crate) chain: &'a str,
    /// Its worst breach first.
    pub(crate) breaches: &'a [Breach],
    pub(crate) second: &'a SlaWindow,
    /// Its end.
    pub(crate) end: SystemTime,
}

impl Events {
    /// All of them, the oldest first.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &SlaEvent> {
        self.all.iter()
    }

    /// The last one.
    pub(crate) fn last(&self) -> Option<&SlaEvent> {
        self.all.back()
    }

    /// A second violated the contract. `find` is asked for its cause where that is the event's; `serial` is counted up with each
    /// new event.
    pub(crate) fn violated(
        &mut self,
        violation: &Violation<'_>,
        serial: &mut u64,
        find: impl FnOnce() -> Finding,
    ) {
        let Violation {
            chain,
            breaches,
            second,
            end,
        } = violation;
        let times = breaches.iter().map(|breach| breach.times);
        let times = times.fold(0.0, f64::max);
        if self.lasting.is_none() {
            if self.all.len() == MOST {
                self.all.pop_front();
            }
            *serial += 1;
            let begin = Duration::try_from_secs_f64(second.seconds)
                .ok()
                .and_then(|length| end.checked_sub(length));
            self.all.push_back(SlaEvent {
                serial: *serial,
                chain: (*chain).to_owned(),
                start: date(begin.unwrap_or(*end)),
                end: None,
                seconds: 0,
                terms: Vec::new(),
                hop: String::new(),
                cause: crate::sla::SlaCause::Unknown,
                evidence: Vec::new(),
                lost: 0,
                worst_latency_us: None,
                worst_loss_percent: None,
            });
        }
        let Some(event) = self.all.back_mut() else {
            return;
        };
        let is_worst = self
            .lasting
            .as_ref()
            .is_none_or(|lasting| times > lasting.worst);
        if is_worst {
            let finding = find();
            event.cause = finding.cause;
            event.hop = finding.hop;
            event.evidence = finding.evidence;
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
            .lasting
            .as_ref()
            .map_or(times, |lasting| lasting.worst.max(times));
        self.lasting = Some(Lasting {
            worst,
            end: *end,
            calm: 0,
        });
    }

    /// A second did not.
    pub(crate) fn kept(&mut self) {
        let Some(lasting) = &mut self.lasting else {
            return;
        };
        lasting.calm += 1;
        if lasting.calm == CALM {
            if let Some(event) = self.all.back_mut() {
                event.end = Some(date(lasting.end));
            }
            self.lasting = None;
        }
    }
}

/// As the API tells it, RFC 3339.
pub(super) fn date(time: SystemTime) -> String {
    humantime::format_rfc3339_millis(time).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sla::SlaCause;

    fn at(second: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(second)
    }

    /// A second in which loss was so many times its bound of 1 %.
    fn violate(events: &mut Events, serial: &mut u64, second: u64, times: f64, hop: &str) {
        let mut window = SlaWindow {
            seconds: 1.0,
            ..SlaWindow::default()
        };
        window.lost.function = 2;
        let breach = Breach {
            term: SlaTerm::Loss,
            measured: times,
            times,
        };
        let violation = Violation {
            chain: "c",
            breaches: &[breach],
            second: &window,
            end: at(second),
        };
        events.violated(&violation, serial, || Finding {
            cause: SlaCause::Function,
            hop: hop.to_owned(),
            evidence: vec![hop.to_owned()],
        });
    }

    #[test]
    fn a_violation_that_lasts_is_one_event_with_its_worst_second() {
        let (mut events, mut serial) = (Events::default(), 5);
        violate(&mut events, &mut serial, 10, 3.0, "first");
        violate(&mut events, &mut serial, 11, 9.0, "worst");
        violate(&mut events, &mut serial, 12, 4.0, "last");
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
    fn it_is_over_when_three_seconds_in_a_row_were_kept() {
        let (mut events, mut serial) = (Events::default(), 0);
        violate(&mut events, &mut serial, 10, 3.0, "a");
        events.kept();
        events.kept();
        violate(&mut events, &mut serial, 13, 3.0, "a");
        assert_eq!(events.iter().count(), 1);
        for _ in 0..2 {
            events.kept();
            assert_eq!(events.last().unwrap().end, None);
        }
        events.kept();
        let end = events.last().unwrap().end.as_deref();
        assert_eq!(end, Some("1970-01-01T00:00:13.000Z"));
        events.kept();
        violate(&mut events, &mut serial, 20, 1.5, "b");
        let all: Vec<_> = events.iter().map(|one| (one.serial, one.seconds)).collect();
        assert_eq!(all, [(1, 2), (2, 1)]);
        assert_eq!(events.last().unwrap().worst_loss_percent, Some(1.5));
    }

    #[test]
    fn the_oldest_go_when_there_are_too_many() {
        let (mut events, mut serial) = (Events::default(), 0);
        for second in 10..MOST as u64 + 13 {
            violate(&mut events, &mut serial, second, 2.0, "a");
            (0..CALM).for_each(|_| events.kept());
        }
        assert_eq!(events.iter().count(), MOST);
        assert_eq!(events.iter().next().map(|one| one.serial), Some(4));
    }
}
