//! Draws a picture as text.

use super::ChainGraph;
use super::layout::{Shape, ShapeKind, place};
use crate::terminal::wrap;

impl ChainGraph {
    /// Draws the picture as text, in lines of at most `width` columns unless a node is wider.
    pub fn text(&self, width: u16) -> String {
        let layout = place(self, width.into());
        let mut grid = vec![vec![' '; layout.columns]; layout.lines];
        // Titles replace pieces of frames, and arrows begin behind names.
        let order = |shape: &Shape| match shape.kind {
            ShapeKind::Frame { .. } | ShapeKind::Node { .. } => 0,
            ShapeKind::Text { .. } => 1,
            ShapeKind::Arrow { .. } => 2,
        };
        let mut shapes: Vec<_> = layout.shapes.iter().collect();
        shapes.sort_by_key(|shape| order(shape));
        for shape in shapes {
            draw_shape(&mut grid, shape);
        }
        let mut out = wrap(&format!("chain {}: {}", self.chain, self.heading), 2, width) + "\n";
        let lines = grid.iter().map(String::from_iter);
        let lines: Vec<_> = lines.map(|line| line.trim_end().to_owned()).collect();
        out.push_str(lines.join("\n").trim_end());
        out.push('\n');
        for line in &self.elsewhere {
            out.push_str(&wrap(line, 2, width));
            out.push('\n');
        }
        out
    }
}

/// Draws one shape. The layout has room for all shapes.
fn draw_shape(grid: &mut [Vec<char>], Shape { x, y, kind }: &Shape) {
    let cell = |x: usize| grid.get(*y).and_then(|line| line.get(x));
    let is_on_frame = cell(*x) == Some(&'─');
    let is_blank = |x: usize| cell(x) == Some(&' ');
    // The gap behind a node's name, up to the node's widest line.
    let gap = (1..*x).take_while(|back| is_blank(x - back - 1)).count();
    let mut put = |x: usize, y: usize, letter: char| {
        if let Some(cell) = grid.get_mut(y).and_then(|line| line.get_mut(x)) {
            *cell = letter;
        }
    };
    match kind {
        ShapeKind::Node { .. } => {}
        ShapeKind::Text { text, .. } => {
            if is_on_frame {
                put(x - 1, *y, ' ');
                put(x + text.chars().count(), *y, ' ');
            }
            for (i, letter) in text.chars().enumerate() {
                put(x + i, *y, letter);
            }
        }
        ShapeKind::Arrow { length } => {
            for x in x - gap..x + length - 1 {
                put(x, *y, '─');
            }
            put(x + length - 1, *y, '>');
        }
        ShapeKind::Frame {
            width,
            height,
            is_open,
            ..
        } => {
            let (right, bottom) = (x + width - 1, y + height - 1);
            for x in *x..=right {
                put(x, *y, '─');
                put(x, bottom, '─');
            }
            let sides = [(*x, ['┌', '│', '└']), (right, ['┐', '│', '┘'])];
            for ((x, [top, side, foot]), is_open) in sides.into_iter().zip(is_open) {
                if *is_open {
                    continue;
                }
                for y in y + 1..bottom {
                    put(x, y, side);
                }
                put(x, *y, top);
                put(x, bottom, foot);
            }
        }
    }
}
