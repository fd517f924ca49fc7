//! Draws a picture as SVG.

use plotters::prelude::*;
use plotters::style::FontStyle;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::layout::{Role, Shape, ShapeKind, place};
use super::{Area, ChainGraph};
use crate::Error;
use crate::html::canvas::{self, BOUND, GRID, INK, Name, SERIES_COLOURS};
use crate::html::standalone_svg;

/// Least columns of the grid, so that letters have the same size in each picture.
const COLUMNS: usize = 100;
/// Pixels of a cell. A letter of the font is narrower: 0.6 of its size.
const CELL: (i32, i32) = (7, 17);
/// The drawing library makes letters of 0.8 times this size: 11 pixels.
const FONT_SIZE: u32 = 14;
const MARGIN: i32 = 8;

impl ChainGraph {
    /// Draws the picture as an element of a page, with a title and a description.
    ///
    /// # Errors
    /// [`Error::Plot`] if the library cannot draw the picture.
    pub fn svg_element(&self) -> Result<String, Error> {
        let layout = place(self, COLUMNS);
        let notes = layout.lines..;
        let lines = layout.lines + self.elsewhere.len();
        let name = Name {
            id: "chain-graph",
            title: &format!("Chain {}", self.chain),
            description: &self.description(),
        };
        let size = cell_corner(layout.columns.max(COLUMNS), lines);
        let size = (size.0 + MARGIN, size.1 + MARGIN);
        canvas::draw_svg(name, size, |area| {
            for shape in &layout.shapes {
                draw_shape(area, shape)?;
            }
            for (y, note) in notes.zip(&self.elsewhere) {
                draw_text(area, (0, y), note, Role::Plain)?;
            }
            Ok(())
        })
    }

    /// Draws the picture as the text of a file.
    ///
    /// # Errors
    /// As [`Self::svg_element`].
    pub fn svg(&self) -> Result<String, Error> {
        Ok(standalone_svg(&self.svg_element()?))
    }
}

/// Returns the upper left corner of a cell, pixels.
fn cell_corner(x: usize, y: usize) -> (i32, i32) {
    let pixel = |cells: usize, size: i32| i32::try_from(cells).unwrap_or(i32::MAX / size) * size;
    (MARGIN + pixel(x, CELL.0), MARGIN + pixel(y, CELL.1))
}

/// Returns the middle of the cell whose upper left corner is given.
fn cell_middle((x, y): (i32, i32)) -> (i32, i32) {
    (x + CELL.0 / 2, y + CELL.1 / 2)
}

fn draw_shape(area: &canvas::Area<'_>, Shape { x, y, kind }: &Shape) -> canvas::Drawn {
    let at = cell_corner(*x, *y);
    match kind {
        ShapeKind::Text { text: line, role } => draw_text(area, (*x, *y), line, *role)?,
        ShapeKind::Node { width, height } => {
            let end = cell_corner(x + width, y + height);
            let corners = [(at.0 - 4, at.1), (end.0 + 4, end.1)];
            area.draw(&Rectangle::new(corners, GRID))?;
        }
        ShapeKind::Arrow { length } => {
            let (from, tip) = (
                cell_middle(at),
                cell_middle(cell_corner(x + length - 1, *y)),
            );
            let head = [(tip.0 - 5, tip.1 - 4), tip, (tip.0 - 5, tip.1 + 4)];
            area.draw(&PathElement::new(vec![from, tip], INK))?;
            area.draw(&PathElement::new(head.to_vec(), INK))?;
        }
        ShapeKind::Frame {
            width,
            height,
            is_open: [is_left_open, is_right_open],
            area: space,
        } => {
            let colour = match space {
                Area::Kernel => SERIES_COLOURS[0],
                Area::User => SERIES_COLOURS[2],
                Area::BlackBox => SERIES_COLOURS[5],
            };
            let (left, top) = (at.0 + CELL.0 / 2, at.1 + 2);
            let end = cell_corner(x + width, y + height);
            let (right, bottom) = (end.0 - CELL.0 / 2, end.1 - 2);
            let filled = colour.mix(0.1).filled();
            area.draw(&Rectangle::new([(left, top), (right, bottom)], filled))?;
            let corners = [
                (left, top),
                (right, top),
                (right, bottom),
                (left, bottom),
                (left, top),
            ];
            let is_open = [false, *is_right_open, false, *is_left_open];
            for (side, _) in corners
                .windows(2)
                .zip(is_open)
                .filter(|(_, is_open)| !is_open)
            {
                area.draw(&PathElement::new(side.to_vec(), colour))?;
            }
        }
    }
    Ok(())
}

fn draw_text(
    area: &canvas::Area<'_>,
    (x, y): (usize, usize),
    text: &str,
    role: Role,
) -> canvas::Drawn {
    let (x, y) = cell_corner(x, y);
    let colour = if role == Role::Loss { BOUND } else { INK };
    let font = ("monospace", FONT_SIZE).into_font();
    let font = match role {
        Role::Name | Role::Title => font.style(FontStyle::Bold),
        Role::Plain | Role::Loss => font,
    };
    let style = font.color(&colour).pos(Pos::new(HPos::Left, VPos::Center));
    let at = (x, y + CELL.1 / 2);
    area.draw(&Text::new(text.to_owned(), at, style))?;
    Ok(())
}
