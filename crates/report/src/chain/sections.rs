//! The page's sections: a probe, the sojourn, the hops, the CPUs; each with figures and tables.

use std::fmt::Write as _;

use myelin_metrics::chain::{ChainReport, Hop};
use myelin_metrics::{
    CpuUse, Distribution, Matching, ProbeResult, ProcessUse, Shares, Stop, Summary,
};

use super::HOPS;
use super::delays;
use crate::Error;
use crate::html::bars::{self, Bar, Group};
use crate::html::canvas::{Name, Width};
use crate::html::markup::{Key, escape, figure, table};
use crate::terminal::{Column, format_ns, format_share, format_us, head_and_rows, latency_rows};

pub(super) fn write_probe(
    out: &mut String,
    report: &ChainReport,
    index: usize,
    name: &str,
    probe: &ProbeResult,
) -> Result<(), Error> {
    let _ = write!(
        out,
        "<section><h2>Round trip: {}</h2>\n<p>{}</p>\n",
        escape(name),
        escape(&describe_settings(probe))
    );
    let bound = report.round_trip_bound_us;
    if let Some(rtt) = &probe.rtt {
        let description = describe_delays(rtt, &probe.rtt_distribution, bound);
        let delays = &probe.rtt_distribution;
        let [cdf, histogram, time] =
            ["cdf", "hist", "time"].map(|plot| format!("rtt-{plot}-{index}"));
        let name = |id, title| Name {
            id,
            title,
            description: &description,
        };
        let svg = delays::plot_cdf(name(&cdf, "Round trip, cumulative"), &[delays], bound)?;
        out.push_str(&figure(
            "",
            &svg,
            &[],
            &format!("Share of packets answered within a time. {description}"),
        ));
        let svg = delays::plot_histogram(name(&histogram, "Round trip, histogram"), delays, bound)?;
        out.push_str(&figure(
            "",
            &svg,
            &[],
            "Share of packets by round trip; bins are equally wide on the logarithmic axis.",
        ));
        let svg =
            delays::plot_over_time(name(&time, "Round trip over time"), &probe.timeline, bound)?;
        let legend = make_legend(["median of each part", "longest of each part"]);
        out.push_str(&figure(
            "",
            &svg,
            &legend,
            "Round trips in the order of sending, in parts of equally many packets.",
        ));
        let columns: Vec<(&str, &Summary)> = [
            ("round trip", probe.rtt.as_ref()),
            ("to the server", probe.forward.as_ref()),
            ("back", probe.reply.as_ref()),
        ]
        .into_iter()
        .filter_map(|(name, summary)| Some((name, summary?)))
        .collect();
        out.push_str("<div class=\"tables\">");
        out.push_str(&latency_html(&columns));
    } else {
        out.push_str("<div class=\"tables\">");
    }
    out.push_str(&table(
        "The probe's packets.",
        &["packets", "count"],
        &packet_rows(probe),
    ));
    out.push_str("</div></section>\n");
    Ok(())
}

fn packet_rows(probe: &ProbeResult) -> Vec<Vec<String>> {
    let counts = &probe.counts;
    let mut rows: Vec<Vec<String>> = [
        ("sent", counts.sent),
        ("answered in time", counts.received),
        ("lost", counts.lost),
        ("of these late", counts.late),
        ("reordered", counts.reordered),
        ("duplicates", counts.duplicates),
        ("corrupted", counts.corrupted),
        ("foreign datagrams", counts.foreign),
        ("sent behind schedule", counts.behind_schedule),
        ("sends refused", counts.send_errors),
    ]
    .into_iter()
    .map(|(name, count)| vec![name.to_owned(), count.to_string()])
    .collect();
    rows.push(vec!["loss".to_owned(), format_share(probe.loss_ratio)]);
    rows
}

/// Describes the settings of a probe in sentences.
fn describe_settings(probe: &ProbeResult) -> String {
    let pace = if probe.interval_us > 0.0 {
        format!("every {} us", format_us(probe.interval_us))
    } else {
        "back to back".to_owned()
    };
    let mut text = format!(
        "Probe mode {}: packets of {} B payload, {pace}, {} repeats of {}.",
        probe.mode, probe.payload_bytes, probe.repeats, probe.count
    );
    if probe.matching == Matching::ByOrder {
        text.push_str(" Answers were matched by order, because their payloads were unreadable.");
    }
    match probe.stopped {
        Some(Stop::Deadline) => text.push_str(" The probe ended early, at its deadline."),
        Some(Stop::Cancelled) => text.push_str(" The probe was cancelled."),
        Some(Stop::NoAnswer) => {
            text.push_str(" The probe ended early, because no packet was answered.");
        }
        None => {}
    }
    text
}

pub(super) fn write_sojourn(out: &mut String, report: &ChainReport) -> Result<(), Error> {
    let full: Vec<(&str, &Distribution)> = report
        .sojourns
        .iter()
        .filter(|(_, d)| !d.is_empty())
        .map(|(name, d)| (name.as_str(), d))
        .collect();
    if full.is_empty() {
        return Ok(());
    }
    let bound = report.latency_bound_us;
    let summaries: Vec<(&str, Summary)> = full
        .iter()
        .filter_map(|(name, d)| Some((*name, d.summary(report.latency_bound_us)?)))
        .collect();
    let descriptions: Vec<String> = full
        .iter()
        .zip(&summaries)
        .map(|((name, d), (_, s))| format!("{name}: {}", describe_delays(s, d, bound)))
        .collect();
    let curves: Vec<&Distribution> = full.iter().map(|(_, d)| *d).collect();
    let name = Name {
        id: "sojourn-cdf",
        title: "Sojourn, cumulative",
        description: &descriptions.join(" "),
    };
    let svg = delays::plot_cdf(name, &curves, bound)?;
    let legend = make_legend(full.iter().map(|(name, _)| *name));
    out.push_str("<section><h2>Sojourn</h2>\n<p>From the front door to departure, of every packet of the chain, measured in band.</p>\n");
    let legend = if legend.len() > 1 { legend } else { Vec::new() };
    out.push_str(&figure("", &svg, &legend, &descriptions.join(" ")));
    let columns: Vec<(&str, &Summary)> = summaries.iter().map(|(name, s)| (*name, s)).collect();
    out.push_str(&latency_html(&columns));
    out.push_str("</section>\n");
    Ok(())
}

pub(super) fn write_hops(out: &mut String, report: &ChainReport) -> Result<(), Error> {
    if report.hops.is_empty() {
        return Ok(());
    }
    out.push_str("<section><h2>Hops</h2>\n");
    let bar = |series, ns: Option<f64>| {
        ns.map(|value| Bar {
            series,
            value,
            interval: None,
            label: format_ns(value),
        })
    };
    let rows: Vec<Group> = report
        .hops
        .iter()
        .map(|hop| Group {
            name: hop_label(hop),
            bars: [bar(0, hop.measured_ns), bar(1, hop.predicted_ns)]
                .into_iter()
                .flatten()
                .collect(),
        })
        .collect();
    let costs = report
        .hops
        .iter()
        .filter_map(|hop| Some(format!("{} {}", hop.name, format_ns(hop.cost_ns()?))));
    let description = costs.collect::<Vec<_>>().join(", ");
    if !description.is_empty() {
        let name = Name {
            id: "hop-cost",
            title: "Cost of each hop",
            description: &description,
        };
        let svg = bars::bars(name, Width::Full, "", &rows, None)?;
        let mut legend = make_legend(["measured", "predicted by the model"]);
        legend.retain(|key| {
            let mut bars = rows.iter().flat_map(|row| &row.bars);
            bars.any(|bar| bar.series == key.series)
        });
        out.push_str(&figure(
            "",
            &svg,
            &legend,
            "Cost of each hop for one packet, in the order of the path.",
        ));
    }
    let (head, cells) = head_and_rows(&HOPS, &report.hops);
    out.push_str(&table("The hops of a packet.", &head, &cells));
    out.push_str("</section>\n");
    Ok(())
}

pub(super) fn write_cpu(out: &mut String, cpu: &CpuUse) -> Result<(), Error> {
    let mut shares: Vec<(String, Shares)> = cpu
        .overall
        .map(|all| ("all cores".to_owned(), all))
        .into_iter()
        .collect();
    shares.extend(
        cpu.per_core
            .iter()
            .map(|core| (format!("core {}", core.core), core.shares)),
    );
    if shares.is_empty() && cpu.processes.is_empty() {
        return Ok(());
    }
    let _ = write!(
        out,
        "<section><h2>CPU</h2>\n<p>Over {:.1} s.</p>\n",
        cpu.duration_s
    );
    if let Some((_, first)) = shares.first() {
        let rows: Vec<Group> = shares
            .iter()
            .map(|(name, shares)| Group {
                name: name.clone(),
                bars: shares
                    .parts()
                    .into_iter()
                    .enumerate()
                    .map(|(series, (_, value))| Bar {
                        series,
                        value,
                        interval: None,
                        label: format!("{:.0} %", value * 100.0),
                    })
                    .collect(),
            })
            .collect();
        let parts = first.parts();
        let description = parts
            .map(|(name, share)| format!("{name} {}", format_share(share)))
            .join(", ");
        let name = Name {
            id: "cpu",
            title: "CPU use",
            description: &format!("{}: {description}.", shares[0].0),
        };
        let svg = bars::stacked(name, Width::Full, "", &rows)?;
        let legend = make_legend(parts.map(|(name, _)| name));
        out.push_str(&figure("", &svg, &legend, "CPU time by kind. The kernel processes packets on virtual links as softirq on the sender's core."));
        let mut head = vec!["cores"];
        head.extend(parts.map(|(name, _)| name));
        let cells: Vec<Vec<String>> = shares
            .iter()
            .map(|(name, shares)| {
                let mut row = vec![name.clone()];
                row.extend(shares.parts().map(|(_, share)| format_share(share)));
                row
            })
            .collect();
        out.push_str(&table("CPU use by kind.", &head, &cells));
    }
    if !cpu.processes.is_empty() {
        fn format_or_ended(value: Option<f64>) -> String {
            value.map_or_else(|| "ended".to_owned(), |value| format!("{value:.3}"))
        }
        let columns: [Column<ProcessUse>; 4] = [
            ("process", |process| process.name.clone()),
            ("number", |process| process.pid.to_string()),
            ("CPU seconds", |process| format_or_ended(process.cpu_s)),
            ("cores", |process| format_or_ended(process.cores)),
        ];
        let (head, cells) = head_and_rows(&columns, &cpu.processes);
        out.push_str(&table("CPU use by process.", &head, &cells));
    }
    out.push_str("</section>\n");
    Ok(())
}

/// Makes a legend: a key for each name, in the order of the series.
fn make_legend<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<Key> {
    let keys = names.into_iter().enumerate().map(|(series, name)| Key {
        series,
        mark: None,
        name: name.to_owned(),
    });
    keys.collect()
}

/// Describes a distribution in a sentence, for captions and screen readers.
fn describe_delays(summary: &Summary, delays: &Distribution, bound_us: Option<f64>) -> String {
    let mut text = format!(
        "Half of the packets within {} us, 99 % within {} us, all within {} us.",
        format_us(summary.p50_us),
        format_us(summary.p99_us),
        format_us(summary.max_us),
    );
    if let Some(us) = bound_us
        && let Some(share) = delays.share_within(us)
    {
        let _ = write!(
            text,
            " Within the SLA of {} us: {}.",
            format_us(us),
            format_share(share)
        );
    }
    text
}

fn latency_html(columns: &[(&str, &Summary)]) -> String {
    let mut head = vec!["microseconds"];
    head.extend(columns.iter().map(|(name, _)| *name));
    table("Delays.", &head, &latency_rows(columns))
}

fn hop_label(hop: &Hop) -> String {
    if hop.space.is_empty() {
        hop.name.clone()
    } else {
        format!("{} ({})", hop.name, hop.space)
    }
}
