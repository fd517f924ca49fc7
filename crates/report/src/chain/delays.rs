//! Plots of delays: distribution, histogram, course over time.

use myelin_metrics::{Distribution, TimelinePoint};
use plotters::prelude::*;
use plotters::style::text_anchor::VPos;

use crate::Error;
use crate::bins::{SERIES, bins_of};
use crate::html::axis::{Axis, Scale};
use crate::html::canvas::{HEIGHT, LABELS, Name, SERIES_COLOURS, Width, drawing, margins, plain};
use crate::html::lines::{AxisStyle, Bound, Curve, Point, Stroke, draw_bound, lines};
use crate::terminal::format_us;

const SIZE: (i32, i32) = (760, HEIGHT);

/// A bound of delays: what it is called, microseconds.
pub(super) type DelayBound<'a> = Option<(&'a str, f64)>;

/// Cumulative distributions on a logarithmic axis of microseconds, with the bound.
pub(super) fn cdf(
    name: Name<'_>,
    distributions: &[&Distribution],
    bound: DelayBound<'_>,
) -> Result<String, Error> {
    let curves: Vec<Curve> = distributions
        .iter()
        .enumerate()
        .map(|(series, distribution)| Curve {
            series,
            points: steps(&distribution.cdf()),
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
    with_bound(bound, true, |bound| {
        lines(name, Width::Full, x, y, &curves, bound)
    })
}

/// A histogram over bins that are equal on the logarithmic axis, with the bound.
pub(super) fn histogram(
    name: Name<'_>,
    delays: &Distribution,
    bound: DelayBound<'_>,
) -> Result<String, Error> {
    let ends = [0.0, 1.0].map(|q| delays.quantile_us(q));
    let ends = ends.into_iter().chain([bound.map(|(_, us)| us)]).flatten();
    let axis = Axis::around(Scale::Log, ends);
    let bound_ns = bound.map(|(_, us)| (us * 1000.0) as u64);
    // As fine as leaves each bar some pixels.
    let series = SERIES[usize::from(axis.decades() > 2.5)];
    let bins = bins_of(delays, series, bound_ns);
    let all = delays.count().max(1) as f64;
    let share = |count: u64| count as f64 / all;
    let shares = Axis::around(Scale::Percent, bins.iter().map(|bin| share(bin.count)));
    with_bound(bound, true, |bound| {
        drawing(name, SIZE, |area| {
            let mut chart = margins(area).build_cartesian_2d(axis, shares)?;
            plain(&mut chart.configure_mesh())
                .x_desc("microseconds")
                .x_labels(LABELS)
                .y_labels(6)
                .draw()?;
            chart.draw_series(bins.iter().filter(|bin| bin.count > 0).map(|bin| {
                let (low, high) = (bin.low_ns as f64 / 1000.0, bin.high_ns as f64 / 1000.0);
                Rectangle::new(
                    [(low, 0.0), (high, share(bin.count))],
                    SERIES_COLOURS[0].filled(),
                )
            }))?;
            bound.map_or(Ok(()), |bound| {
                draw_bound(area, &mut chart, bound, VPos::Top)
            })
        })
    })
}

/// Median and longest delay of each stretch over the time of the run.
pub(super) fn over_time(
    name: Name<'_>,
    points: &[TimelinePoint],
    bound: DelayBound<'_>,
) -> Result<String, Error> {
    let end = points.last().map_or(0.0, |point| point.at_s).max(1e-3);
    let delays = points.iter().flat_map(|point| [point.min_us, point.max_us]);
    let delays = Axis::around(Scale::Log, delays.chain(bound.map(|(_, us)| us)));
    let time = Axis::exactly(Scale::Linear, 0.0, end);
    with_bound(bound, false, |bound| {
        drawing(name, SIZE, |area| {
            let mut chart = margins(area).build_cartesian_2d(time, delays)?;
            plain(&mut chart.configure_mesh())
                .disable_x_mesh()
                .x_desc("seconds")
                .y_desc("microseconds")
                .x_labels(LABELS)
                .y_labels(LABELS)
                .draw()?;
            let longest = points.iter().map(|point| (point.at_s, point.max_us));
            let dot = SERIES_COLOURS[1].filled();
            chart.draw_series(longest.map(|at| Circle::new(at, 2, dot)))?;
            chart.draw_series(LineSeries::new(
                points.iter().map(|point| (point.at_s, point.p50_us)),
                SERIES_COLOURS[0].stroke_width(2),
            ))?;
            bound.map_or(Ok(()), |bound| {
                draw_bound(area, &mut chart, bound, VPos::Bottom)
            })
        })
    })
}

/// Draws with the bound, whose name says its figure.
fn with_bound<T>(
    bound: DelayBound<'_>,
    upright: bool,
    draw: impl FnOnce(Option<Bound<'_>>) -> T,
) -> T {
    let name = bound.map(|(name, us)| format!("{name} {} us", format_us(us)));
    draw(
        name.as_deref()
            .zip(bound)
            .map(|(name, (_, at))| Bound { name, at, upright }),
    )
}

/// A distribution function is a staircase, and few points should not look like many.
fn steps(points: &[(f64, f64)]) -> Vec<Point> {
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
