//! The common parts of all drawings: size, colours, letters, and the SVG element.
//!
//! Drawings use fixed colours. The page's style sheet selects these values and replaces them in
//! dark mode. A figure copied out of the page keeps the light colours.

use plotters::chart::MeshStyle;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::axis::Axis;
use super::markup::escape;
use crate::Error;

/// Colour of text and axes. The style sheet has the same values.
pub(crate) const INK: RGBColor = RGBColor(0x22, 0x22, 0x23);
pub(crate) const GRID: RGBColor = RGBColor(0xdd, 0xdd, 0xde);
/// Colour of bounds.
pub(crate) const BOUND: RGBColor = RGBColor(0xc2, 0x36, 0x16);
/// Colours of series: Okabe and Ito's palette, which colour-blind readers can distinguish.
pub(crate) const SERIES_COLOURS: [RGBColor; 6] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x99, 0x99, 0x98),
];

pub(crate) const HEIGHT: i32 = 300;
pub(crate) const FONT_SIZE: u32 = 13;
/// Most labels of an axis of [`Width::Full`].
pub(crate) const LABELS: usize = 15;
const FONT: &str = "sans-serif";
/// Estimated pixels of an average letter, without font metrics.
const LETTER: f64 = 6.0;

/// The width of a drawing. On the page, letters have the same size at either width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Width {
    /// The whole column.
    Full,
    /// A part of the column, for two or three drawings side by side.
    Part,
}

impl Width {
    pub(crate) fn pixels(self) -> i32 {
        match self {
            Self::Full => 760,
            Self::Part => 410,
        }
    }

    /// Returns the most labels of an axis.
    pub(crate) fn labels(self) -> usize {
        match self {
            Self::Full => LABELS,
            Self::Part => 7,
        }
    }
}

/// The title and the description of a drawing.
#[derive(Debug, Clone, Copy)]
pub struct Name<'a> {
    /// An identifier that is unique on the page.
    pub id: &'a str,
    /// The title of the drawing.
    pub title: &'a str,
    /// The content of the drawing in words, for screen readers.
    pub description: &'a str,
}

pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(crate) type Drawn = Result<(), Box<dyn std::error::Error>>;
/// A chart of numbers over numbers.
pub(crate) type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Axis, Axis>>;

/// Draws an SVG element with a title and a description.
pub(crate) fn draw_svg(
    Name {
        id,
        title,
        description,
    }: Name<'_>,
    (width, height): (i32, i32),
    draw: impl FnOnce(&Area<'_>) -> Drawn,
) -> Result<String, Error> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (width.unsigned_abs(), height.unsigned_abs()))
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
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\" aria-labelledby=\"{id}-t {id}-d\">\
         <title id=\"{id}-t\">{}</title><desc id=\"{id}-d\">{}</desc>{body}",
        escape(title),
        escape(description),
    ))
}

pub(crate) fn text_style(size: u32, colour: RGBColor, h: HPos, v: VPos) -> TextStyle<'static> {
    (FONT, size).into_font().color(&colour).pos(Pos::new(h, v))
}

/// Estimates the width of a text, pixels.
pub(crate) fn text_width(text: &str) -> i32 {
    (text.chars().count() as f64 * LETTER).ceil() as i32
}

/// Estimates the number of letters that fit into `pixels`.
pub(crate) fn letters_in(pixels: i32) -> usize {
    (f64::from(pixels.max(0)) / LETTER) as usize
}

/// Makes a chart with margins for its labels.
pub(crate) fn build_chart<'a, 's>(area: &'a Area<'s>) -> ChartBuilder<'a, 'static, SVGBackend<'s>> {
    let mut builder = ChartBuilder::on(area);
    builder
        .margin(8)
        .margin_right(20)
        .x_label_area_size(44)
        .y_label_area_size(64);
    builder
}

/// Draws thin lines at the labels only.
pub(crate) fn style_mesh<'m, 'a, 'b, 's>(
    mesh: &'m mut MeshStyle<'a, 'b, Axis, Axis, SVGBackend<'s>>,
) -> &'m mut MeshStyle<'a, 'b, Axis, Axis, SVGBackend<'s>> {
    mesh.axis_style(INK)
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .label_style((FONT, FONT_SIZE).into_font().color(&INK))
}
