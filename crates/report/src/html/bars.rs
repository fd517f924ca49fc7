//! Horizontal bars: values with intervals, and parts of a whole.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::axis::{Axis, Scale};
use super::canvas::{
    Area, BOUND, Drawn, FONT_SIZE, GRID, INK, Name, SERIES_COLOURS, Width, draw_svg, letters_in,
    text_style, text_width,
};
use super::lines::{Bound, draw_whisker, is_finite_interval};
use crate::Error;

/// A bar.
#[derive(Debug, Clone)]
pub struct Bar {
    /// Number of the series, which selects the colour.
    pub series: usize,
    /// The length of the bar.
    pub value: f64,
    /// The ends of the value's interval.
    pub interval: Option<(f64, f64)>,
    /// The text at the end of the bar.
    pub label: String,
}

/// Bars that belong together.
#[derive(Debug, Clone)]
pub struct Group {
    /// The text in front of the bars.
    pub name: String,
    /// The bars, or the parts of a whole in order.
    pub bars: Vec<Bar>,
}

const BAR_HEIGHT: i32 = 15;
const STACK_HEIGHT: i32 = 30;
/// Pixels between groups.
const GAP: i32 = 8;
/// Pixels below the bars, for the axis and its title.
const AXIS_HEIGHT: i32 = 40;
/// Text on a bar: the same colour in light and dark mode, like the bars.
const ON_BAR: RGBColor = RGBColor(0x00, 0x00, 0x01);

/// Draws grouped bars on a common scale, with intervals. Without a title the drawing has no axis,
/// because the bars show their values.
///
/// # Errors
/// [`Error::Plot`] if the library cannot draw the bars.
pub fn bars(
    name: Name<'_>,
    width: Width,
    axis_title: &str,
    groups: &[Group],
    bound: Option<Bound<'_>>,
) -> Result<String, Error> {
    let all = || groups.iter().flat_map(|group| group.bars.iter());
    let ends = |bar: &Bar| {
        bar.interval
            .map_or([bar.value; 2], |(low, high)| [low, high])
    };
    let values = all().flat_map(|bar| [bar.value].into_iter().chain(ends(bar)));
    let axis = Axis::from_values(Scale::Linear, values.chain(bound.map(|bound| bound.at)));
    let longest = all().map(|bar| text_width(&bar.label)).max().unwrap_or(0);
    let frame = Frame::new(width, groups, axis, longest + 12);
    let bottom = GAP / 2 + groups.iter().map(row_height).sum::<i32>();
    let height = bottom + axis_height(axis_title);
    draw_svg(name, (width.pixels(), height), |area| {
        frame.draw_axis(area, bottom, axis_title, width.labels() - 2)?;
        let mut y = GAP / 2;
        for group in groups {
            frame.draw_name(area, &group.name, y + row_height(group) / 2)?;
            for (index, bar) in group.bars.iter().enumerate() {
                frame.draw_bar(area, bar, y + GAP / 2 + pixels(index) * BAR_HEIGHT)?;
            }
            y += row_height(group);
        }
        bound.map_or(Ok(()), |bound| frame.draw_bound(area, bound, bottom))
    })
}

/// Draws a bar for each group, divided into its parts: shares (0 to 1) of a whole.
///
/// # Errors
/// [`Error::Plot`] if the library cannot draw the bars.
pub fn stacked(
    name: Name<'_>,
    width: Width,
    axis_title: &str,
    groups: &[Group],
) -> Result<String, Error> {
    let sum =
        |group: &Group| -> f64 { group.bars.iter().map(|bar| finite_or_zero(bar.value)).sum() };
    let longest = groups.iter().map(sum).fold(1.0, f64::max);
    let frame = Frame::new(
        width,
        groups,
        Axis::from_range(Scale::Percent, 0.0, longest),
        20,
    );
    let bottom = GAP / 2 + pixels(groups.len()) * STACK_HEIGHT;
    let height = bottom + axis_height(axis_title);
    draw_svg(name, (width.pixels(), height), |area| {
        frame.draw_axis(area, bottom, axis_title, 5)?;
        for (index, group) in groups.iter().enumerate() {
            let top = GAP / 2 + pixels(index) * STACK_HEIGHT;
            frame.draw_name(area, &group.name, top + STACK_HEIGHT / 2)?;
            let mut from = 0.0;
            for part in &group.bars {
                let to = from + finite_or_zero(part.value);
                let ends = (frame.x(from), frame.x(to));
                from = to;
                draw_part(
                    area,
                    part,
                    ends,
                    (top + GAP / 2, top + STACK_HEIGHT - GAP / 2),
                )?;
            }
        }
        Ok(())
    })
}

fn draw_part(
    area: &Area<'_>,
    part: &Bar,
    (left, right): (i32, i32),
    (top, bottom): (i32, i32),
) -> Drawn {
    if right > left {
        area.draw(&Rectangle::new(
            [(left, top), (right, bottom)],
            SERIES_COLOURS[part.series % SERIES_COLOURS.len()].filled(),
        ))?;
    }
    // Writes the value if the part is wide enough.
    if right - left > text_width(&part.label) {
        let at = (i32::midpoint(left, right), i32::midpoint(top, bottom));
        area.draw(&Text::new(
            part.label.clone(),
            at,
            text_style(FONT_SIZE - 2, ON_BAR, HPos::Center, VPos::Center),
        ))?;
    }
    Ok(())
}

/// The horizontal layout of a drawing.
struct Frame {
    /// The end of the names and the start of the bars, pixels.
    left: i32,
    /// The end of the longest bar, pixels.
    right: i32,
    /// Most letters of a name.
    letters: usize,
    axis: Axis,
}

impl Frame {
    /// Leaves `margin` pixels right of the longest bar.
    fn new(width: Width, groups: &[Group], axis: Axis, margin: i32) -> Self {
        let names = groups.iter().map(|group| text_width(&group.name));
        let left = names.max().unwrap_or(0).clamp(40, width.pixels() / 3) + 12;
        Self {
            left,
            right: width.pixels() - margin.min(width.pixels() / 3),
            letters: letters_in(left - 12),
            axis,
        }
    }

    fn x(&self, value: f64) -> i32 {
        let position = self.axis.position(value).clamp(0.0, 1.0);
        self.left + (position * f64::from(self.right - self.left)).round() as i32
    }

    fn draw_name(&self, area: &Area<'_>, name: &str, middle: i32) -> Drawn {
        area.draw(&Text::new(
            shorten(name, self.letters),
            (self.left - 8, middle),
            text_style(FONT_SIZE, INK, HPos::Right, VPos::Center),
        ))?;
        Ok(())
    }

    fn draw_axis(&self, area: &Area<'_>, bottom: i32, title: &str, labels: usize) -> Drawn {
        if title.is_empty() {
            return Ok(());
        }
        for tick in self.axis.ticks(labels) {
            let x = self.x(tick);
            area.draw(&PathElement::new(vec![(x, 0), (x, bottom + 3)], GRID))?;
            area.draw(&Text::new(
                self.axis.format(tick),
                (x, bottom + 6),
                text_style(FONT_SIZE - 1, INK, HPos::Center, VPos::Top),
            ))?;
        }
        let middle = i32::midpoint(self.left, self.right);
        area.draw(&Text::new(
            title,
            (middle, bottom + AXIS_HEIGHT - 2),
            text_style(FONT_SIZE, INK, HPos::Center, VPos::Bottom),
        ))?;
        Ok(())
    }

    fn draw_bar(&self, area: &Area<'_>, bar: &Bar, top: i32) -> Drawn {
        let (zero, tip) = (self.x(0.0), self.x(finite_or_zero(bar.value)));
        // Even the shortest bar is visible.
        let (left, right) = (zero.min(tip), zero.max(tip).max(zero.min(tip) + 1));
        let middle = top + (BAR_HEIGHT - 2) / 2;
        area.draw(&Rectangle::new(
            [(left, top), (right, top + BAR_HEIGHT - 2)],
            SERIES_COLOURS[bar.series % SERIES_COLOURS.len()].filled(),
        ))?;
        let mut end = right;
        if let Some((low, high)) = bar.interval.filter(is_finite_interval) {
            draw_whisker(area, [(self.x(low), middle), (self.x(high), middle)])?;
            end = end.max(self.x(high) + 3);
        }
        area.draw(&Text::new(
            bar.label.clone(),
            (end + 6, middle),
            text_style(FONT_SIZE - 1, INK, HPos::Left, VPos::Center),
        ))?;
        Ok(())
    }

    fn draw_bound(&self, area: &Area<'_>, bound: Bound<'_>, bottom: i32) -> Drawn {
        let x = self.x(bound.at);
        let mut y = 0;
        while y < bottom {
            let dash = vec![(x, y), (x, (y + 6).min(bottom))];
            area.draw(&PathElement::new(dash, BOUND.stroke_width(2)))?;
            y += 10;
        }
        area.draw(&Text::new(
            bound.name,
            (x - 6, bottom),
            text_style(FONT_SIZE - 1, BOUND, HPos::Right, VPos::Bottom),
        ))?;
        Ok(())
    }
}

fn axis_height(title: &str) -> i32 {
    if title.is_empty() {
        GAP / 2
    } else {
        AXIS_HEIGHT
    }
}

fn row_height(group: &Group) -> i32 {
    pixels(group.bars.len().max(1)) * BAR_HEIGHT + GAP
}

/// Returns the length of a bar: `value`, or 0 for a value that is not finite.
fn finite_or_zero(value: f64) -> f64 {
    if value.is_finite() { value } else { 0.0 }
}

/// Converts a count for pixel arithmetic, with a limit so that sums cannot overflow.
pub(crate) fn pixels(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX).min(10_000)
}

fn shorten(name: &str, letters: usize) -> String {
    if name.chars().count() <= letters {
        return name.to_owned();
    }
    let kept = letters.saturating_sub(1);
    name.chars().take(kept).chain(['…']).collect()
}
