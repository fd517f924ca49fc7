//! Contracts and their violations, in words and tables.

use std::collections::BTreeSet;

use myelin_api::units::{BIT_RATE, PACKET_RATE, SIZE};
use myelin_api::{
    ChainStatus, Losses, SlaContract, SlaEvent, SlaSecond, SlaSojourn, SlaState, SlaStatus,
    SlaTerm, SlaWindow,
};

use crate::terminal::{Column, digits_or_dash, grid, listing, or_dash, wrap};

/// Says in a few words whether a chain keeps its contract.
pub fn verdict(status: &ChainStatus) -> String {
    let Some(sla) = &status.sla else {
        return "-".to_owned();
    };
    match sla.state {
        SlaState::NoContract => "no contract".to_owned(),
        SlaState::Kept => "kept".to_owned(),
        SlaState::Violated => {
            let now = if sla.violated_now { ", now" } else { "" };
            format!("violated {} s{now}", sla.violated_s)
        }
    }
}

/// Formats the terms of a contract in a line.
pub fn format_terms(contract: &SlaContract) -> String {
    let mut terms = Vec::new();
    let rates = [
        contract.rate_pps.map(|rate| PACKET_RATE.format(rate)),
        contract
            .rate_bps
            .map(|rate| format!("{}/s", BIT_RATE.format(rate))),
    ];
    let bursts = [
        contract
            .burst_packets
            .map(|burst| format!("{burst} packets")),
        contract.burst_bits.map(|burst| SIZE.format(burst)),
    ];
    let profile = [("rate", join_terms(rates)), ("burst", join_terms(bursts))];
    for (term, figures) in profile.iter().filter(|(_, figures)| figures != "-") {
        terms.push(format!("{term} {figures}"));
    }
    if let Some(us) = contract.latency_us {
        terms.push(format!("{} % within {us} us", contract.percentile));
    }
    if let Some(percent) = contract.loss_percent {
        terms.push(format!("loss at most {percent} %"));
    }
    if terms.is_empty() {
        return "nothing: the chain file has no `sla`".to_owned();
    }
    terms.join(", ")
}

/// Formats a count or a rate in at most five characters: `999`, `12.3k`, `1.20M`.
pub fn format_short(figure: f64) -> String {
    let mut scaled = figure;
    for unit in ["", "k", "M", "G"] {
        // 999.5 would become 1000, so the next unit is used.
        if scaled < 999.5 {
            let places = match scaled {
                _ if unit.is_empty() => 0,
                small if small < 9.995 => 2,
                middle if middle < 99.95 => 1,
                _ => 0,
            };
            return format!("{scaled:.places$}{unit}");
        }
        scaled /= 1000.0;
    }
    format!("{scaled:.0}T")
}

/// Formats lost packets by place: `3 ring, 2 function`.
pub(crate) fn format_places(lost: &Losses) -> String {
    let places = lost.by_place().into_iter();
    let lossy = places.filter(|(_, packets)| *packets > 0);
    let parts: Vec<_> = lossy
        .map(|(place, packets)| format!("{packets} {place}"))
        .collect();
    if parts.is_empty() {
        "0".to_owned()
    } else {
        parts.join(", ")
    }
}

/// Describes a violation and the evidence of its cause in one line.
pub fn describe_with_evidence(event: &SlaEvent) -> String {
    let facts = [vec![describe_violation(event)], event.evidence.clone()].concat();
    facts.join("; ")
}

/// Describes a violation in one line: start, terms, duration, worst figures, cause, hop.
fn describe_violation(event: &SlaEvent) -> String {
    let terms: Vec<_> = event.terms.iter().map(|term| term.as_str()).collect();
    let lasts = if event.end.is_some() {
        "for"
    } else {
        "so far for"
    };
    let worst = event.terms.iter().filter_map(|term| match term {
        SlaTerm::Core => None,
        SlaTerm::Latency => Some(format!("{:.1} us", event.worst_latency_us?)),
        SlaTerm::Loss => Some(format!("{:.3} % lost", event.worst_loss_percent?)),
    });
    let worst = worst.collect::<Vec<_>>().join(" and ");
    let mut facts = vec![format!(
        "{} {}: {} violated {lasts} {} s, cause {}, hop {}",
        event.start,
        event.chain,
        terms.join(" and "),
        event.seconds,
        event.cause.as_str(),
        event.hop
    )];
    if !worst.is_empty() {
        facts.push(format!("at worst {worst}"));
    }
    if event.lost > 0 {
        facts.push(format!("{} packets lost in all", event.lost));
    }
    facts.join("; ")
}

/// Formats a violation, wrapped under its first line. `verbose` adds the evidence of its cause.
pub fn event(event: &SlaEvent, verbose: bool, width: u16) -> String {
    let text = if verbose {
        describe_with_evidence(event)
    } else {
        describe_violation(event)
    };
    wrap(&text, 2, width)
}

/// Formats the number of violations and their chains, then each violation, wrapped.
pub fn events(events: &[SlaEvent], verbose: bool, width: u16) -> String {
    let chains: BTreeSet<&str> = events.iter().map(|event| &*event.chain).collect();
    let chains: Vec<&str> = chains.into_iter().collect();
    let lasting = events.iter().filter(|event| event.end.is_none()).count();
    let seconds: u64 = events.iter().map(|event| event.seconds).sum();
    let verdict = match (events.len(), lasting) {
        (0, _) => "no contract was violated".to_owned(),
        (count, lasting) => format!(
            "violations: {count} ({seconds} s in all, {lasting} not over); chains: {}",
            chains.join(", ")
        ),
    };
    let listed = events
        .iter()
        .map(|violation| event(violation, verbose, width));
    let all: Vec<String> = std::iter::once(wrap(&verdict, 2, width))
        .chain(listed)
        .collect();
    all.join("\n")
}

/// Describes a violation in a few words.
pub fn describe_briefly(event: &SlaEvent) -> String {
    let lasts = if event.end.is_some() { "" } else { "..." };
    format!(
        "{} at {}, {} s{lasts}",
        event.cause.as_str(),
        event.hop,
        event.seconds
    )
}

/// Formats the terms of the contract and the measured figures.
pub fn table(sla: &SlaStatus, width: u16) -> String {
    let head = ["SLA", "agreed", ">last second", ">last minute", ">since up"];
    let mut table = grid(head, width);
    let windows = [&sla.second, &sla.minute, &sla.life];
    let mut row = |name: &str, agreed: String, figure: &dyn Fn(&SlaWindow) -> String| {
        let mut cells = vec![name.to_owned(), agreed];
        cells.extend(windows.map(figure));
        table.add_row(cells);
    };
    let contract = &sla.contract;
    let pps = |rate: f64| format!("{}pps", format_short(rate));
    let bps = |rate: f64| format!("{}bit/s", format_short(rate));
    row(
        "rate in",
        join_terms([
            contract.rate_pps.map(|rate| pps(rate as f64)),
            contract.rate_bps.map(|rate| bps(rate as f64)),
        ]),
        &|window| format!("{}, {}", pps(window.in_pps), bps(window.in_bps)),
    );
    row("policed", format_burst(sla), &|window| {
        window.policed.to_string()
    });
    row("rate out", "-".to_owned(), &|window| {
        join_terms([Some(pps(window.out_pps)), window.out_bps.map(bps)])
    });
    let us = |figure| digits_or_dash(1, figure);
    let sojourn = |figure: fn(&SlaSojourn) -> f64| {
        move |window: &SlaWindow| us(window.sojourn.as_ref().map(figure))
    };
    row(
        &format!("p{} us", contract.percentile),
        us(contract.latency_us),
        &sojourn(|sojourn| sojourn.agreed_us),
    );
    row("p50 us", "-".to_owned(), &sojourn(|sojourn| sojourn.p50_us));
    row("max us", "-".to_owned(), &sojourn(|sojourn| sojourn.max_us));
    let percent = |share| digits_or_dash(3, share);
    row("loss %", percent(contract.loss_percent), &|window| {
        percent(window.loss_percent)
    });
    row("lost", "-".to_owned(), &|window| {
        format_places(&window.lost)
    });
    table.trim_fmt()
}

/// Formats seconds, one a line. `-` stands for a missing figure.
pub fn seconds(seconds: &[SlaSecond], width: u16) -> String {
    fn us(second: &SlaSecond, figure: fn(&SlaSojourn) -> f64) -> String {
        digits_or_dash(1, second.window.sojourn.as_ref().map(figure))
    }
    let columns: [Column<SlaSecond>; 10] = [
        // The time of day is enough, because the agent keeps 300 seconds.
        ("end", |second| {
            let time = second
                .end
                .split_once('T')
                .map_or(&*second.end, |(_, time)| time);
            time.trim_end_matches('Z').to_owned()
        }),
        (">in", |second| second.window.packets_in.to_string()),
        (">policed", |second| second.window.policed.to_string()),
        (">out", |second| second.window.packets_out.to_string()),
        (">lost", |second| second.window.lost.total().to_string()),
        ("where", |second| match second.window.lost.total() {
            0 => "-".to_owned(),
            _ => format_places(&second.window.lost),
        }),
        (">p50 us", |second| us(second, |sojourn| sojourn.p50_us)),
        (">agreed us", |second| {
            us(second, |sojourn| sojourn.agreed_us)
        }),
        (">max us", |second| us(second, |sojourn| sojourn.max_us)),
        (">cores", |second| {
            digits_or_dash(2, second.window.worker_cores)
        }),
    ];
    listing(&columns, seconds, width)
}

/// Formats the burst of the profile. The policer drops the excess.
fn format_burst(sla: &SlaStatus) -> String {
    let packets = sla.contract.burst_packets;
    let bits = sla.contract.burst_bits;
    let parts = [
        packets.map(|packets| format!("burst {packets} packets")),
        bits.map(|bits| format!("burst {}bit", format_short(bits as f64))),
    ];
    join_terms(parts)
}

/// Joins the agreed terms, or returns `-` without terms.
fn join_terms(terms: [Option<String>; 2]) -> String {
    let terms: Vec<_> = terms.into_iter().flatten().collect();
    or_dash((!terms.is_empty()).then(|| terms.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use myelin_api::SlaCause;

    #[test]
    fn short_figures_have_at_most_five_characters() {
        let all = [
            (0.0, "0"),
            (999.4, "999"),
            (999.5, "1.00k"),
            (9994.0, "9.99k"),
            (9996.0, "10.0k"),
            (99_960.0, "100k"),
            (999_600.0, "1.00M"),
            (12.3e6, "12.3M"),
            (1e9, "1.00G"),
            (2e12, "2T"),
        ];
        for (figure, text) in all {
            assert_eq!(format_short(figure), text);
        }
    }

    #[test]
    fn a_violation_shows_its_worst_figures() {
        let mut event = SlaEvent {
            serial: 1,
            chain: "c".to_owned(),
            start: "T".to_owned(),
            end: None,
            seconds: 3,
            terms: vec![SlaTerm::Latency, SlaTerm::Loss],
            hop: "filter".to_owned(),
            cause: SlaCause::Function,
            evidence: vec!["function filter dropped 7 packets".to_owned()],
            lost: 7,
            worst_latency_us: Some(12.0),
            worst_loss_percent: Some(50.0),
        };
        assert_eq!(
            describe_with_evidence(&event),
            "T c: latency and loss violated so far for 3 s, cause function, hop filter; at worst 12.0 us and 50.000 % lost; \
             7 packets lost in all; function filter dropped 7 packets"
        );
        assert_eq!(describe_briefly(&event), "function at filter, 3 s...");
        event.end = Some("E".to_owned());
        assert!(describe_with_evidence(&event).contains("violated for 3 s"));
    }

    #[test]
    fn only_places_with_losses_are_shown() {
        let lost = Losses {
            ring: 3,
            unseen: 1,
            ..Losses::default()
        };
        assert_eq!(format_places(&lost), "3 ring, 1 unseen");
        assert_eq!(format_places(&Losses::default()), "0");
    }
}
