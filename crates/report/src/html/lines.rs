//! Curves over a number: lines with intervals, distributions.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::axis::{Axis, Scale};
use super::canvas::{
    Area, BOUND, Chart, Drawn, FONT_SIZE, HEIGHT, INK, LABELS, Name, SERIES_COLOURS, Width,
    build_chart, draw_svg, style_mesh, text_style, text_width,
};
use crate::Error;

/// The title and the scale of an axis.
#[derive(Debug, Clone, Copy)]
pub struct AxisStyle<'a> {
    /// The title, with the unit.
    pub title: &'a str,
    /// The scale of the axis.
    pub scale: Scale,
}

/// A point of a curve.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// The value on the horizontal axis.
    pub x: f64,
    /// The value on the vertical axis.
    pub y: f64,
    /// The ends of the interval of `y`.
    pub interval: Option<(f64, f64)>,
}

/// The style of a curve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stroke {
    /// A line, for points that are close together.
    Line,
    /// A line through marked points. Only the marked points are measured.
    Marked,
    /// Marks without a line: values between them are unknown.
    Marks,
}

/// A series of points.
#[derive(Debug, Clone)]
pub struct Curve {
    /// Number of the series, which selects colour and mark.
    pub series: usize,
    /// The points in the order of the line.
    pub points: Vec<Point>,
    /// The style of line and marks.
    pub stroke: Stroke,
}

/// A line across a drawing.
#[derive(Debug, Clone, Copy)]
pub struct Bound<'a> {
    /// The name of the bound, with the value and the unit.
    pub name: &'a str,
    /// The value on the axis that the bound crosses.
    pub at: f64,
    /// Whether the line is vertical, at a value of the horizontal axis.
    pub upright: bool,
}

/// The marks of the series in turn, as a legend shows them. The list has one mark less than
/// there are colours, so few series share colour and mark.
pub const MARKS: [char; 5] = ['●', '■', '▲', '◆', '▼'];

/// Draws curves over common axes. Omits points that are not finite.
///
/// # Errors
/// [`Error::Plot`] if the library cannot draw the curves.
pub fn lines(
    name: Name<'_>,
    width: Width,
    x: AxisStyle<'_>,
    y: AxisStyle<'_>,
    curves: &[Curve],
    bound: Option<Bound<'_>>,
) -> Result<String, Error> {
    let points = || curves.iter().flat_map(|curve| curve.points.iter());
    let bound_at = |upright| bound.filter(|b| b.upright == upright).map(|b| b.at);
    let x_axis = Axis::from_values(x.scale, points().map(|p| p.x).chain(bound_at(true)));
    let y_axis = if y.scale == Scale::Percent {
        Axis::from_range(y.scale, 0.0, 1.0)
    } else {
        let ends = |p: &Point| p.interval.map_or([p.y; 2], |(low, high)| [low, high]);
        let all = points().flat_map(|p| [p.y].into_iter().chain(ends(p)));
        Axis::from_values(y.scale, all.chain(bound_at(false)))
    };
    // The lower right corner of a distribution function is free.
    let bound = bound.map(|bound| (bound, VPos::Bottom));
    chart(
        name,
        width,
        (x_axis, x.title),
        (y_axis, y.title),
        bound,
        |area, chart| {
            curves
                .iter()
                .try_for_each(|curve| draw_curve(area, chart, curve))
        },
    )
}

/// Draws a chart over two axes with titles. `draw` adds the data, below the bound. The name of a
/// vertical bound is at the given end.
pub(crate) fn chart(
    name: Name<'_>,
    width: Width,
    (x, x_title): (Axis, &str),
    (y, y_title): (Axis, &str),
    bound: Option<(Bound<'_>, VPos)>,
    draw: impl FnOnce(&Area<'_>, &mut Chart<'_, '_>) -> Drawn,
) -> Result<String, Error> {
    draw_svg(name, (width.pixels(), HEIGHT), |area| {
        let labels = if y.is_logarithmic() { LABELS } else { 6 };
        let mut chart = build_chart(area).build_cartesian_2d(x, y)?;
        style_mesh(&mut chart.configure_mesh())
            .x_desc(x_title)
            .y_desc(y_title)
            .x_labels(width.labels())
            .y_labels(labels)
            .draw()?;
        draw(area, &mut chart)?;
        bound.map_or(Ok(()), |(bound, end)| {
            draw_bound(area, &mut chart, bound, end)
        })
    })
}

fn draw_curve(area: &Area<'_>, chart: &mut Chart<'_, '_>, curve: &Curve) -> Drawn {
    let colour = SERIES_COLOURS[curve.series % SERIES_COLOURS.len()];
    let points: Vec<&Point> = curve
        .points
        .iter()
        .filter(|point| point.x.is_finite() && point.y.is_finite())
        .collect();
    if curve.stroke != Stroke::Marks {
        let line = points.iter().map(|point| (point.x, point.y));
        chart.draw_series(LineSeries::new(line, colour.stroke_width(2)))?;
    }
    for point in points {
        let (x, y) = chart.backend_coord(&(point.x, point.y));
        if let Some((low, high)) = point.interval.filter(is_finite_interval) {
            let (_, low) = chart.backend_coord(&(point.x, low));
            let (_, high) = chart.backend_coord(&(point.x, high));
            draw_whisker(area, [(x, low), (x, high)])?;
        }
        if curve.stroke != Stroke::Line {
            draw_mark(area, (x, y), curve.series, colour)?;
        }
    }
    Ok(())
}

pub(crate) fn is_finite_interval((low, high): &(f64, f64)) -> bool {
    low.is_finite() && high.is_finite()
}

/// Draws an interval, horizontal or vertical, with marks at its ends.
pub(crate) fn draw_whisker(area: &Area<'_>, ends: [(i32, i32); 2]) -> Drawn {
    let is_horizontal = ends[0].1 == ends[1].1 && ends[0].0 != ends[1].0;
    let (dx, dy) = if is_horizontal { (0, 3) } else { (3, 0) };
    let style = INK.stroke_width(1);
    area.draw(&PathElement::new(ends.to_vec(), style))?;
    for (x, y) in ends {
        let end = vec![(x - dx, y - dy), (x + dx, y + dy)];
        area.draw(&PathElement::new(end, style))?;
    }
    Ok(())
}

fn draw_mark(area: &Area<'_>, (x, y): (i32, i32), series: usize, colour: RGBColor) -> Drawn {
    let style = colour.filled();
    let shape = |corners: &[(i32, i32)]| {
        let corners: Vec<_> = corners.iter().map(|(dx, dy)| (x + dx, y + dy)).collect();
        Polygon::new(corners, style)
    };
    match series % MARKS.len() {
        0 => area.draw(&Circle::new((x, y), 4, style))?,
        1 => area.draw(&shape(&[(-4, -4), (4, -4), (4, 4), (-4, 4)]))?,
        2 => area.draw(&shape(&[(-5, 4), (5, 4), (0, -5)]))?,
        3 => area.draw(&shape(&[(-5, 0), (0, -6), (5, 0), (0, 6)]))?,
        _ => area.draw(&shape(&[(-5, -4), (5, -4), (0, 5)]))?,
    }
    Ok(())
}

/// Draws a bound and its name. The name of a vertical bound is at the lower or upper end.
fn draw_bound(area: &Area<'_>, chart: &mut Chart<'_, '_>, bound: Bound<'_>, end: VPos) -> Drawn {
    let (across, up) = (chart.x_range(), chart.y_range());
    let ends = if bound.upright {
        [(bound.at, up.start), (bound.at, up.end)]
    } else {
        [(across.start, bound.at), (across.end, bound.at)]
    };
    chart.draw_series(DashedLineSeries::new(ends, 6, 4, BOUND.stroke_width(2)))?;
    let start = chart.backend_coord(&(across.start, up.start)).0;
    let first = chart.backend_coord(&ends[0]);
    let last = chart.backend_coord(&ends[1]);
    let (at, h, v) = if bound.upright {
        let (x, y) = match end {
            VPos::Bottom => (first.0, first.1 - 6),
            _ => (last.0, last.1 + 2),
        };
        // Near the left end, the name has no room left of the bound.
        if x - start > text_width(bound.name) + 8 {
            ((x - 6, y), HPos::Right, end)
        } else {
            ((x + 6, y), HPos::Left, end)
        }
    } else {
        ((last.0, last.1 + 4), HPos::Right, VPos::Top)
    };
    area.draw(&Text::new(
        bound.name,
        at,
        text_style(FONT_SIZE, BOUND, h, v),
    ))?;
    Ok(())
}
