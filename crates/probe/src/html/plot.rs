//! The page's plots, as SVG.
//!
//! Colours are written as fixed values and given their light or dark meaning by the page's style sheet, which selects on them; a
//! figure copied out of the page keeps the light ones.

use plotters::chart::MeshStyle;
use plotters::coord::Shift;
use plotters::coord::ranged1d::Ranged;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::log_axis::LogAxis;
use super::markup::escape;
use crate::bins::{SERIES, bins_of};
use crate::terminal::format_us;
use crate::{Distribution, Error, TimelinePoint};

/// Text and axes; the style sheet knows the same values.
pub(super) const INK: RGBColor = RGBColor(0x22, 0x22, 0x23);
const GRID: RGBColor = RGBColor(0xdd, 0xdd, 0xde);
/// Bounds.
const BOUND: RGBColor = RGBColor(0xc2, 0x36, 0x16);
/// Series: Okabe and Ito's palette, told apart by colour-blind readers too.
pub(super) const SERIES_COLOURS: [RGBColor; 6] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x99, 0x99, 0x98),
];

const WIDTH: i32 = 760;
const HEIGHT: i32 = 300;
/// Labels of a logarithmic axis, at most.
const LOG_LABELS: usize = 15;
const FONT: &str = "sans-serif";
const FONT_SIZE: u32 = 13;

/// A bound drawn into a plot: what it is called, microseconds.
pub(super) type Bound<'a> = Option<(&'a str, f64)>;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

/// Draws into a canvas and makes an accessible figure of it: `title` is its name, `says` its content in words.
fn drawing(
    id: &str,
    title: &str,
    says: &str,
    height: i32,
    draw: impl FnOnce(&Area<'_>) -> Drawn,
) -> Result<String, Error> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH.unsigned_abs(), height.unsigned_abs()))
            .into_drawing_area();
        draw(&area)
            .and_then(|()| area.present().map_err(Into::into))
            .map_err(|error| Error::Plot {
                plot: title.to_owned(),
                cause: error.to_string(),
            })?;
    }
    let body = svg.split_once('>').map_or("", |(_, body)| body);
    Ok(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-labelledby=\"{id}-t {id}-d\">\
         <title id=\"{id}-t\">{}</title><desc id=\"{id}-d\">{}</desc>{body}",
        escape(title),
        escape(says),
    ))
}

fn text(size: u32, colour: RGBColor, h: HPos, v: VPos) -> TextStyle<'static> {
    (FONT, size).into_font().color(&colour).pos(Pos::new(h, v))
}

/// Room around a chart for its labels.
fn margins<'a, 's>(area: &'a Area<'s>) -> ChartBuilder<'a, 'static, SVGBackend<'s>> {
    let mut builder = ChartBuilder::on(area);
    builder
        .margin(8)
        .margin_right(20)
        .x_label_area_size(44)
        .y_label_area_size(64);
    builder
}

/// A mesh of thin lines at the labels only.
fn plain<'m, 'a, 'b, 's, X, Y>(
    mesh: &'m mut MeshStyle<'a, 'b, X, Y, SVGBackend<'s>>,
) -> &'m mut MeshStyle<'a, 'b, X, Y, SVGBackend<'s>>
where
    X: Ranged,
    Y: Ranged,
{
    mesh.axis_style(INK)
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .label_style((FONT, FONT_SIZE).into_font().color(&INK))
}

/// A chart of shares over a logarithmic axis of delays.
type DelayChart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<LogAxis, RangedCoordf64>>;

/// Axes of shares from 0 to `top` over delays.
fn delay_chart<'a, 'b>(
    area: &'a Area<'b>,
    axis: LogAxis,
    top: f64,
) -> Result<DelayChart<'a, 'b>, Box<dyn std::error::Error>> {
    let mut chart = margins(area).build_cartesian_2d(axis, 0.0..top)?;
    plain(&mut chart.configure_mesh())
        .x_desc("microseconds")
        .x_labels(LOG_LABELS)
        .y_labels(6)
        .y_label_formatter(&move |share: &f64| percent_tick(*share, top))
        .draw()?;
    Ok(chart)
}

/// The bound as an upright line, named at its upper or lower end.
fn upright(
    area: &Area<'_>,
    chart: &mut DelayChart<'_, '_>,
    bound: Bound<'_>,
    top: f64,
    end: VPos,
) -> Drawn {
    let Some((name, us)) = bound else {
        return Ok(());
    };
    let line = DashedLineSeries::new([(us, 0.0), (us, top)], 6, 4, BOUND.stroke_width(2));
    chart.draw_series(line)?;
    let (x, y) = match end {
        VPos::Bottom => chart.backend_coord(&(us, 0.0)),
        _ => chart.backend_coord(&(us, top)),
    };
    let lift = if matches!(end, VPos::Bottom) { -6 } else { 2 };
    area.draw(&Text::new(
        format!("{name} {} us", format_us(us)),
        (x - 6, y + lift),
        text(FONT_SIZE, BOUND, HPos::Right, end),
    ))?;
    Ok(())
}

/// Cumulative distributions on a logarithmic axis of microseconds, with the bound.
pub(super) fn cdf(
    id: &str,
    title: &str,
    says: &str,
    curves: &[&Distribution],
    bound: Bound<'_>,
) -> Result<String, Error> {
    let axis = delay_axis(curves, bound);
    drawing(id, title, says, HEIGHT, |area| {
        let mut chart = delay_chart(area, axis, 1.0)?;
        for (i, curve) in curves.iter().enumerate() {
            let style = SERIES_COLOURS[i % SERIES_COLOURS.len()].stroke_width(2);
            chart.draw_series(LineSeries::new(steps(&curve.cdf()), style))?;
        }
        // A distribution function leaves its lower right corner free.
        upright(area, &mut chart, bound, 1.0, VPos::Bottom)
    })
}

/// A histogram over bins that are equal on the logarithmic axis, with the bound.
pub(super) fn histogram(
    id: &str,
    title: &str,
    says: &str,
    delays: &Distribution,
    bound: Bound<'_>,
) -> Result<String, Error> {
    let axis = delay_axis(&[delays], bound);
    let bound_ns = bound.map(|(_, us)| (us * 1000.0) as u64);
    // As fine as leaves each bar some pixels.
    let series = SERIES[usize::from(axis.decades() > 2.5)];
    let bins = bins_of(delays, series, bound_ns);
    let all = delays.count().max(1) as f64;
    let highest = bins
        .iter()
        .map(|bin| bin.count as f64 / all)
        .fold(1e-6, f64::max);
    drawing(id, title, says, HEIGHT, |area| {
        let top = highest * 1.08;
        let mut chart = delay_chart(area, axis, top)?;
        chart.draw_series(bins.iter().filter(|bin| bin.count > 0).map(|bin| {
            let (low, high) = (bin.low_ns as f64 / 1000.0, bin.high_ns as f64 / 1000.0);
            Rectangle::new(
                [(low, 0.0), (high, bin.count as f64 / all)],
                SERIES_COLOURS[0].filled(),
            )
        }))?;
        upright(area, &mut chart, bound, top, VPos::Top)
    })
}

/// Median and longest delay of each stretch over the time of the run.
pub(super) fn over_time(
    id: &str,
    title: &str,
    says: &str,
    points: &[TimelinePoint],
    bound: Bound<'_>,
) -> Result<String, Error> {
    let end = points.last().map_or(0.0, |point| point.at_s).max(1e-3);
    let low = points
        .iter()
        .map(|p| p.min_us)
        .fold(f64::INFINITY, f64::min)
        .min(1e9);
    let high = points.iter().map(|p| p.max_us).fold(0.0, f64::max);
    let axis = LogAxis::around(low, bound.map_or(high, |(_, us)| high.max(us)));
    drawing(id, title, says, HEIGHT, |area| {
        let mut chart = margins(area).build_cartesian_2d(0.0..end, axis)?;
        plain(&mut chart.configure_mesh())
            .disable_x_mesh()
            .x_desc("seconds")
            .y_desc("microseconds")
            .y_labels(LOG_LABELS)
            .draw()?;
        chart.draw_series(
            points
                .iter()
                .map(|p| Circle::new((p.at_s, p.max_us), 2, SERIES_COLOURS[1].filled())),
        )?;
        chart.draw_series(LineSeries::new(
            points.iter().map(|p| (p.at_s, p.p50_us)),
            SERIES_COLOURS[0].stroke_width(2),
        ))?;
        if let Some((name, us)) = bound {
            chart.draw_series(DashedLineSeries::new(
                [(0.0, us), (end, us)],
                6,
                4,
                BOUND.stroke_width(2),
            ))?;
            let (x, y) = chart.backend_coord(&(end, us));
            area.draw(&Text::new(
                format!("{name} {} us", format_us(us)),
                (x, y + 4),
                text(FONT_SIZE, BOUND, HPos::Right, VPos::Top),
            ))?;
        }
        Ok(())
    })
}

/// One row of a bar plot: its name, and (colour, length, what it says at its end) of each bar.
pub(super) struct BarRow {
    pub(super) name: String,
    pub(super) bars: Vec<(usize, f64, String)>,
}

const NAME_WIDTH: i32 = 190;
const BAR_HEIGHT: i32 = 15;

/// Bars under each other, to a common scale: the costs of hops.
pub(super) fn bars(id: &str, title: &str, says: &str, rows: &[BarRow]) -> Result<String, Error> {
    let height = rows.iter().map(row_height).sum::<i32>() + 8;
    let longest = rows
        .iter()
        .flat_map(|row| &row.bars)
        .map(|bar| bar.1)
        .fold(0.0, f64::max)
        .max(1e-9);
    let room = f64::from(WIDTH - NAME_WIDTH - 90);
    drawing(id, title, says, height, |area| {
        let mut y = 4;
        for row in rows {
            let middle = y + row_height(row) / 2;
            area.draw(&Text::new(
                shorten(&row.name),
                (NAME_WIDTH - 8, middle),
                text(FONT_SIZE, INK, HPos::Right, VPos::Center),
            ))?;
            let mut top = y + 4;
            for (colour, length, says) in &row.bars {
                let end = NAME_WIDTH + (length / longest * room).round().max(1.0) as i32;
                area.draw(&Rectangle::new(
                    [(NAME_WIDTH, top), (end, top + BAR_HEIGHT - 2)],
                    SERIES_COLOURS[*colour].filled(),
                ))?;
                let at = (end + 6, top + (BAR_HEIGHT - 2) / 2);
                area.draw(&Text::new(
                    says.clone(),
                    at,
                    text(FONT_SIZE - 1, INK, HPos::Left, VPos::Center),
                ))?;
                top += BAR_HEIGHT;
            }
            y += row_height(row);
        }
        Ok(())
    })
}

/// Bars after each other, each row filling the width: shares of a whole.
pub(super) fn stacked(id: &str, title: &str, says: &str, rows: &[BarRow]) -> Result<String, Error> {
    const ROW: i32 = 30;
    let height = pixels(rows.len()) * ROW + 8;
    let room = f64::from(WIDTH - NAME_WIDTH - 20);
    drawing(id, title, says, height, |area| {
        for (i, row) in rows.iter().enumerate() {
            let top = 4 + pixels(i) * ROW;
            area.draw(&Text::new(
                shorten(&row.name),
                (NAME_WIDTH - 8, top + ROW / 2),
                text(FONT_SIZE, INK, HPos::Right, VPos::Center),
            ))?;
            let mut from = 0.0;
            for (colour, share, says) in &row.bars {
                let x = |share: f64| NAME_WIDTH + (share * room).round() as i32;
                let (left, right) = (x(from), x(from + share));
                from += share;
                if right > left {
                    area.draw(&Rectangle::new(
                        [(left, top + 4), (right, top + ROW - 4)],
                        SERIES_COLOURS[*colour].filled(),
                    ))?;
                }
                // The figure where it has room to stand.
                if right - left > 40 {
                    let at = (i32::midpoint(left, right), top + ROW / 2);
                    area.draw(&Text::new(
                        says.clone(),
                        at,
                        text(FONT_SIZE - 2, ON_BAR, HPos::Center, VPos::Center),
                    ))?;
                }
            }
        }
        Ok(())
    })
}

/// Text on a bar: the same in light and dark, as the bars are.
const ON_BAR: RGBColor = RGBColor(0x00, 0x00, 0x01);

fn row_height(row: &BarRow) -> i32 {
    pixels(row.bars.len().max(1)) * BAR_HEIGHT + 8
}

/// A count as it enters pixel arithmetic; far more rows than a chain has stop growing.
fn pixels(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX).min(10_000)
}

fn shorten(name: &str) -> String {
    const LONGEST: usize = 26;
    if name.chars().count() <= LONGEST {
        return name.to_owned();
    }
    name.chars().take(LONGEST - 1).chain(['…']).collect()
}

fn delay_axis(delays: &[&Distribution], bound: Bound<'_>) -> LogAxis {
    let ends = |q| delays.iter().filter_map(move |d| d.quantile_us(q));
    let bound = bound.map(|(_, us)| us);
    let low = ends(0.0)
        .chain(bound)
        .fold(f64::INFINITY, f64::min)
        .min(1e9);
    let high = ends(1.0).chain(bound).fold(0.0, f64::max);
    LogAxis::around(low, high)
}

/// A distribution function is a staircase, and few points should not look like many.
fn steps(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut line = Vec::with_capacity(points.len() * 2);
    let mut last = 0.0;
    for &(us, share) in points {
        line.push((us, last));
        line.push((us, share));
        last = share;
    }
    line
}

fn percent_tick(share: f64, highest: f64) -> String {
    if highest < 0.05 {
        format!("{:.1} %", share * 100.0)
    } else {
        format!("{:.0} %", share * 100.0)
    }
}
