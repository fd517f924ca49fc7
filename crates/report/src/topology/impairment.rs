//! Delay, rate and loss of links, and the delay line that serves them.

use std::fmt::Write as _;

use myelin_api::units::{BIT_RATE, DURATION};
use myelin_api::{DirectionStatus, LinkEmulation, LinkImpairments, TopologyLink, TopologyStatus};

use crate::terminal::{Column, add_field, listing};

/// Millionths of a percent.
const PPM_PER_PERCENT: f64 = 10_000.0;

/// Describes delay, rate and loss: `, delay 10ms +- 1ms, 100Mbit, loss 1 %, by netem`, and after
/// `back` those of the other direction, if they differ; empty without them.
pub fn describe_impairments(link: &TopologyLink) -> String {
    let mut text = describe_values(&link.impairments);
    if let Some(back) = &link.back {
        let values = describe_values(back);
        let values = values.strip_prefix(", ").unwrap_or("unimpaired");
        // Writing to a string cannot fail.
        let _ = write!(text, ", back {values}");
    }
    if !text.is_empty() && link.by != LinkEmulation::default() {
        // Writing to a string cannot fail.
        let _ = write!(text, ", by {}", link.by);
    }
    text
}

fn describe_values(link: &LinkImpairments) -> String {
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

#[cfg(test)]
mod tests {
    use myelin_api::{ChainSource, DelayLineStatus, SojournStatus};

    use super::*;

    #[test]
    fn links_and_their_counters_are_described() {
        let source = ChainSource {
            name: "lab.yaml".to_owned(),
            text: "apiVersion: myelin.dev/v1alpha1\nkind: Topology\nmetadata: { name: lab }\nspec:\n  \
                   hosts: [ h1, h2, h3 ]\n  links:\n    - { ends: [ h2, h3 ] }\n    - { ends: [ h1, h2 ], delay: 10ms, \
                   jitter: 1ms, bandwidth: 10Mbit, queue: 50, loss: { rate: 0.5%, burst: 3 } }\n    - { ends: [ h1, h3 ], \
                   back: { delay: 2ms } }\n    - { ends: [ h1, h3 ], name: up, delay: 3ms, back: {} }\n"
                .to_owned(),
            ..ChainSource::default()
        };
        let mut status = TopologyStatus::of(&source.parse_objects().unwrap().topologies[0]);
        let described = status.links.iter().map(describe_impairments);
        let words = ", delay 10ms +- 1ms, 10Mbit, queue 50, loss 0.5 % in bursts of 3";
        let one_way = [", back delay 2ms", ", delay 3ms, back unimpaired"];
        assert_eq!(
            described.collect::<Vec<_>>(),
            ["", words, one_way[0], one_way[1]]
        );
        assert_eq!(details(&status, 100), "", "the topology does not run");
        let there = DirectionStatus {
            arrived: 77,
            line_drops: 5,
            died: 6,
            ..DirectionStatus::default()
        };
        status.links[1].directions = Some([there, DirectionStatus::default()]);
        status.delay_line = Some(DelayLineStatus {
            pid: 4711,
            restarts: 2,
            has_failed: false,
            waiting: 0,
            most_waiting: 9,
            foreign: 3,
            overflowed: 8,
            lateness: SojournStatus {
                p99_us: 12.5,
                ..SojournStatus::default()
            },
        });
        let text = details(&status, 200);
        for words in [
            "77",
            "11",
            "4711, 2 restarts",
            "at most 9",
            "12.5 us p99",
            "8 found",
            "3 had",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }
}
