//! Delay, rate and loss of links, and the delay line that serves them.

use std::fmt::Write as _;

use myelin_api::units::{BIT_RATE, DURATION};
use myelin_api::{DirectionStatus, LinkImpairments, TopologyStatus};

use crate::terminal::{Column, add_field, listing};

/// Millionths of a percent.
const PPM_PER_PERCENT: f64 = 10_000.0;

/// Describes delay, rate and loss: `, delay 10ms +- 1ms, 100Mbit, loss 1 %`; empty without them.
pub fn describe_impairments(link: &LinkImpairments) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    if link.delay_ns > 0 {
        let _ = write!(text, ", delay {}", DURATION.format(link.delay_ns));
    }
    if link.jitter_ns > 0 {
        let _ = write!(text, " +- {}", DURATION.format(link.jitter_ns));
    }
    if let Some(rate) = link.rate_bps {
        let _ = write!(text, ", {}", BIT_RATE.format(rate));
    }
    if let Some(queue) = link.queue_packets {
        let _ = write!(text, ", queue {queue}");
    }
    if link.loss_ppm > 0 {
        let _ = write!(
            text,
            ", loss {} %",
            f64::from(link.loss_ppm) / PPM_PER_PERCENT
        );
    }
    if link.loss_ppm > 0 && link.loss_burst > 1 {
        let _ = write!(text, " in bursts of {}", link.loss_burst);
    }
    text
}

/// A direction of a link, with its ends.
struct Direction<'a> {
    from: &'a str,
    to: &'a str,
    counters: DirectionStatus,
}

/// Formats the counters of all links with delay, rate or loss, and the delay line.
pub(super) fn details(status: &TopologyStatus, width: u16) -> String {
    let columns: [Column<Direction<'_>>; 8] = [
        ("from", |direction| direction.from.to_owned()),
        ("to", |direction| direction.to.to_owned()),
        (">arrived", |direction| {
            direction.counters.arrived.to_string()
        }),
        (">left", |direction| direction.counters.left.to_string()),
        (">queue full", |direction| {
            direction.counters.queue_drops.to_string()
        }),
        (">lost", |direction| direction.counters.lost.to_string()),
        (">line drops", |direction| {
            (direction.counters.line_drops + direction.counters.died).to_string()
        }),
        (">waiting", |direction| {
            direction.counters.waiting.to_string()
        }),
    ];
    let directions: Vec<Direction<'_>> = status
        .links
        .iter()
        .filter_map(|link| Some((link, link.directions?)))
        .flat_map(|(link, [there, back])| {
            let [one, other] = link.ends.each_ref().map(|end| end.node.as_str());
            [(one, other, there), (other, one, back)]
        })
        .map(|(from, to, counters)| Direction { from, to, counters })
        .collect();
    let mut out = String::new();
    if !directions.is_empty() {
        out.push_str(&listing(&columns, &directions, width));
        out.push('\n');
    }
    if let Some(line) = &status.delay_line {
        let state = match (line.has_failed, line.restarts) {
            (true, _) => "failed: its links drop all packets".to_owned(),
            (false, 0) => format!("process {}", line.pid),
            (false, restarts) => format!("process {}, {restarts} restarts", line.pid),
        };
        let lateness = &line.lateness;
        let text = format!(
            "{state}, {} waiting (at most {}), lateness {:.1} us median, {:.1} us p99",
            line.waiting, line.most_waiting, lateness.p50_us, lateness.p99_us
        );
        add_field(&mut out, "delay line", &text, width);
        let lost = line.overflowed + line.foreign;
        if lost > 0 {
            let text = format!(
                "{} found the ring of the worker full, {} had no valid tag",
                line.overflowed, line.foreign
            );
            add_field(&mut out, "dropped", &text, width);
        }
    }
    out
}
