//! Plots of delays: cumulative distribution, histogram, delay over time.

use myelin_metrics::{Distribution, TimelinePoint};
use plotters::prelude::*;
use plotters::style::text_anchor::VPos;

use crate::Error;
use crate::bins::{SERIES, bins_of};
use crate::html::axis::{Axis, Scale};
use crate::html::canvas::{Name, SERIES_COLOURS, Width};
use crate::html::lines::{AxisStyle, Bound, Curve, Point, Stroke, chart, lines};
use crate::terminal::format_us;

/// Plots cumulative distributions on a logarithmic axis of microseconds, with the SLA's bound.
pub(super) fn plot_cdf(
    name: Name<'_>,
    distributions: &[&Distribution],
    bound_us: Option<f64>,
) -> Result<String, Error> {
    let curves: Vec<Curve> = distributions
        .iter()
        .enumerate()
        .map(|(series, distribution)| Curve {
            series,
            points: to_steps(&distribution.cdf()),
            stroke: Stroke::Line,
        })
        .collect();
    let x = AxisStyle {
        title: "microseconds",
        scale: Scale::Log,
    };
    let y = AxisStyle {
        title: "",
        scale: Scale::Percent,
    };
    let label = format_bound_label(bound_us);
    lines(
        name,
        Width::Full,
        x,
        y,
        &curves,
        make_bound(bound_us, &label, true),
    )
}

/// Plots a histogram with bins of equal width on the logarithmic axis, and the SLA's bound.
pub(super) fn plot_histogram(
    name: Name<'_>,
    delays: &Distribution,
    bound_us: Option<f64>,
) -> Result<String, Error> {
    let ends = [0.0, 1.0].map(|q| delays.quantile_us(q));
    let ends = ends.into_iter().chain([bound_us]).flatten();
    let axis = Axis::from_values(Scale::Log, ends);
    let bound_ns = bound_us.map(|us| (us * 1000.0) as u64);
    // Bars need a few pixels each.
    let series = SERIES[usize::from(axis.decades() > 2.5)];
    let bins = bins_of(delays, series, bound_ns);
    let all = delays.count().max(1) as f64;
    let share = |count: u64| count as f64 / all;
    let shares = Axis::from_values(Scale::Percent, bins.iter().map(|bin| share(bin.count)));
    let label = format_bound_label(bound_us);
    let bound = make_bound(bound_us, &label, true).map(|bound| (bound, VPos::Top));
    let x = (axis, "microseconds");
    chart(name, Width::Full, x, (shares, ""), bound, |_, chart| {
        chart.draw_series(bins.iter().filter(|bin| bin.count > 0).map(|bin| {
            let (low, high) = (bin.low_ns as f64 / 1000.0, bin.high_ns as f64 / 1000.0);
            Rectangle::new(
                [(low, 0.0), (high, share(bin.count))],
                SERIES_COLOURS[0].filled(),
            )
        }))?;
        Ok(())
    })
}

/// Plots the median and the longest delay of each interval of the run.
pub(super) fn plot_over_time(
    name: Name<'_>,
    points: &[TimelinePoint],
    bound_us: Option<f64>,
) -> Result<String, Error> {
    let end = points.last().map_or(0.0, |point| point.at_s).max(1e-3);
    let delays = points.iter().flat_map(|point| [point.min_us, point.max_us]);
    let delays = Axis::from_values(Scale::Log, delays.chain(bound_us));
    let time = Axis::from_range(Scale::Linear, 0.0, end);
    let label = format_bound_label(bound_us);
    let bound = make_bound(bound_us, &label, false).map(|bound| (bound, VPos::Bottom));
    let (x, y) = ((time, "seconds"), (delays, "microseconds"));
    chart(name, Width::Full, x, y, bound, |_, chart| {
        let longest = points.iter().map(|point| (point.at_s, point.max_us));
        let dot = SERIES_COLOURS[1].filled();
        chart.draw_series(longest.map(|at| Circle::new(at, 2, dot)))?;
        chart.draw_series(LineSeries::new(
            points.iter().map(|point| (point.at_s, point.p50_us)),
            SERIES_COLOURS[0].stroke_width(2),
        ))?;
        Ok(())
    })
}

/// Formats the label of the bound's line.
fn format_bound_label(bound_us: Option<f64>) -> String {
    bound_us.map_or_else(String::new, |us| format!("SLA {} us", format_us(us)))
}

fn make_bound(bound_us: Option<f64>, name: &str, upright: bool) -> Option<Bound<'_>> {
    bound_us.map(|at| Bound { name, at, upright })
}

/// Converts a distribution function to steps, because straight lines would suggest delays that no
/// packet had.
fn to_steps(points: &[(f64, f64)]) -> Vec<Point> {
    let mut last = 0.0;
    points
        .iter()
        .flat_map(|&(x, share)| {
            let from = std::mem::replace(&mut last, share);
            [from, share].map(|y| Point {
                x,
                y,
                interval: None,
            })
        })
        .collect()
}
