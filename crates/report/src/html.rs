//! Self-contained HTML pages: no script, no font, no picture from elsewhere.
//!
//! [`document`] makes a page of its parts, [`markup`] makes text, tables and figures, and [`plot`]
//! makes drawings. The markup is well-formed XML, so tests parse it.

pub(crate) mod axis;
pub(crate) mod bars;
pub(crate) mod canvas;
pub(crate) mod lines;
pub mod markup;

use markup::escape;

const STYLE: &str = include_str!("page.css");
/// Colours of drawings, light and dark.
const COLOURS: &str = include_str!("html/colours.css");

/// Makes a file of a drawing, with the colours of a page.
pub(crate) fn standalone_svg(drawing: &str) -> String {
    let content = drawing.trim_end();
    let content = content.strip_suffix("</svg>").unwrap_or(content);
    // Programs without style sheets show the light colours, which the drawing itself has.
    format!(
        "{content}<style>\n@media (prefers-color-scheme: dark) {{\n{COLOURS}}}\n</style>\n</svg>\n"
    )
}

/// Drawings, as SVG.
pub mod plot {
    pub use super::axis::Scale;
    pub use super::bars::{Bar, Group, bars, stacked};
    pub use super::canvas::{Name, Width};
    pub use super::lines::{AxisStyle, Bound, Curve, MARKS, Point, Stroke, lines};
}

/// Makes a self-contained page from a title, the markup of the header and that of the main part. A
/// `wide` page has room for drawings side by side.
pub fn document(title: &str, wide: bool, header: &str, main: &str) -> String {
    let title = escape(title);
    let class = if wide { " class=\"wide\"" } else { "" };
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">\n<head>\n<meta charset=\"utf-8\" />\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\" />\n<title>{title} - Myelin</title>\n\
         <style>\n{COLOURS}{STYLE}</style>\n</head>\n<body{class}>\n<header>\n<h1>{title}</h1>\n{header}</header>\n<main>\n{main}</main>\n\
         </body>\n</html>\n"
    )
}
