//! Self-contained HTML pages: no script, no font, no picture from elsewhere.
//!
//! [`render`] makes the page of a chain. What it is made of serves other reports as well: [`document`] around the page,
//! [`markup`] for text, tables and figures, [`plot`] for the drawings. Every plot has its figures in a table on the page.
//! The markup is also well-formed XML, which is how it is tested.

mod axis;
mod bars;
mod canvas;
mod delays;
mod lines;
pub mod markup;
mod page;
mod sections;

pub use page::{document, render};

/// Drawings, as SVG.
pub mod plot {
    pub use super::axis::Scale;
    pub use super::bars::{Bar, Group, bars, stacked};
    pub use super::canvas::{Name, Width};
    pub use super::lines::{AxisStyle, Bound, Curve, MARKS, Point, Stroke, lines};
}
