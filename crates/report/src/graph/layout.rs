//! Places a picture on a grid of characters: rows of nodes, frames around groups.

use std::ops::Range;

use super::{Area, ChainGraph, Edge, Group, Node};

/// Columns between an arrow or a frame and a node.
const GAP: usize = 1;
/// Columns of a frame's side and of the gap behind the side.
const SIDE: usize = 1 + GAP;
/// Column of a title in its frame.
const TITLE_AT: usize = 3;
const SHORTEST_ARROW: usize = 3;

/// A picture in columns and lines.
#[derive(Debug, Default)]
pub(super) struct Layout {
    pub(super) columns: usize,
    pub(super) lines: usize,
    pub(super) shapes: Vec<Shape>,
}

/// A shape with its upper left corner.
#[derive(Debug)]
pub(super) struct Shape {
    pub(super) x: usize,
    pub(super) y: usize,
    pub(super) kind: ShapeKind,
}

#[derive(Debug)]
pub(super) enum ShapeKind {
    /// The frame of a group. A side is open where the group continues in another row.
    Frame {
        width: usize,
        height: usize,
        is_open: [bool; 2],
        area: Area,
    },
    /// The area of a node.
    Node {
        width: usize,
        height: usize,
    },
    Text {
        text: String,
        role: Role,
    },
    Arrow {
        length: usize,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// The name of a node.
    Name,
    /// The title of a group.
    Title,
    Plain,
    Loss,
}

/// Places a graph in rows of at most `width` columns. A wider node has its own row.
pub(super) fn place(graph: &ChainGraph, width: usize) -> Layout {
    let mut layout = Layout::default();
    let mut rest = 0..graph.nodes.len();
    while !rest.is_empty() {
        let end = find_row_end(graph, &rest, width);
        let row = Row::place(graph, rest.start..end, layout.lines);
        layout.columns = layout.columns.max(row.x);
        layout.lines += row.height;
        layout.shapes.extend(row.shapes);
        rest.start = end;
    }
    layout
}

/// Returns the end of the row that begins with the first node of `rest`.
fn find_row_end(graph: &ChainGraph, rest: &Range<usize>, width: usize) -> usize {
    let fits = |nodes: Range<usize>| Row::place(graph, nodes, 0).x <= width;
    let mut end = rest.start + 1;
    while end < rest.end && fits(rest.start..end + 1) {
        end += 1;
    }
    // A group that fits into one row begins a new row.
    let group = graph.nodes.get(end).and_then(|node| node.group);
    let is_member = |node: &Node| node.group.is_some() && node.group == group;
    let first = graph.nodes.iter().position(is_member);
    let last = graph.nodes.iter().rposition(is_member);
    match first.zip(last) {
        Some((first, last)) if (rest.start + 1..end).contains(&first) && fits(first..last + 1) => {
            first
        }
        _ => end,
    }
}

/// A row under construction.
struct Row<'a> {
    graph: &'a ChainGraph,
    y: usize,
    /// Lines above the nodes: 1 in a row with frames, otherwise 0.
    top: usize,
    /// The first free column after the placed shapes.
    x: usize,
    height: usize,
    shapes: Vec<Shape>,
    /// The unfinished frame: group, first column, and whether its left side is open.
    frame: Option<(usize, usize, bool)>,
}

impl<'a> Row<'a> {
    fn place(graph: &'a ChainGraph, nodes: Range<usize>, y: usize) -> Self {
        let edges = nodes
            .clone()
            .filter_map(|i| graph.edges.get(i.checked_sub(1)?));
        let edge_lines = edges.map(|edge| edge.lines.len() + 1);
        let node_lines = graph.nodes[nodes.clone()].iter().map(count_lines);
        let lines = edge_lines.chain(node_lines).max().unwrap_or_default();
        let has_frames = graph.nodes[nodes.clone()]
            .iter()
            .any(|node| node.group.is_some());
        let top = usize::from(has_frames);
        let mut row = Self {
            graph,
            y,
            top,
            x: 0,
            height: top + lines + top,
            shapes: Vec::new(),
            frame: None,
        };
        for i in nodes.clone() {
            row.add(i);
        }
        let next = graph.nodes.get(nodes.end);
        let group = row.frame.map(|(group, ..)| group);
        let continues = next.is_some_and(|next| next.group.is_some() && next.group == group);
        row.close_frame(continues);
        row
    }

    /// Adds a node, with the edge that leads to it.
    fn add(&mut self, i: usize) {
        let node = &self.graph.nodes[i];
        let previous = i.checked_sub(1);
        let edge = previous.and_then(|previous| self.graph.edges.get(previous));
        let previous_group = previous.and_then(|previous| self.graph.nodes[previous].group);
        let is_same_group = node.group.is_some() && node.group == previous_group;
        if !is_same_group {
            self.close_frame(false);
        } else if self.frame.is_none() {
            // The previous row has the first nodes of the group.
            self.open_frame(node.group, true);
        }
        if let Some(edge) = edge {
            self.add_edge(edge);
        }
        if !is_same_group {
            self.open_frame(node.group, false);
        }
        self.add_node(node);
    }

    fn open_frame(&mut self, group: Option<usize>, is_left_open: bool) {
        if let Some(group) = group {
            self.frame = Some((group, self.x, is_left_open));
            self.x += SIDE;
        }
    }

    fn close_frame(&mut self, is_right_open: bool) {
        let Some((group, x, is_left_open)) = self.frame.take() else {
            return;
        };
        let Some(Group {
            title,
            area,
            losses,
        }) = self.graph.groups.get(group)
        else {
            return;
        };
        let continued = if is_left_open { ", continued" } else { "" };
        let title = format!("{title}{continued}");
        let losses = losses.as_deref().filter(|_| !is_right_open);
        let longest = title
            .chars()
            .count()
            .max(losses.map_or(0, |losses| losses.chars().count()));
        // A piece of the frame is visible on both sides of the title.
        let width = (self.x + SIDE - x).max(longest + 2 * TITLE_AT);
        self.x = x + width;
        let kind = ShapeKind::Frame {
            width,
            height: self.height,
            is_open: [is_left_open, is_right_open],
            area: *area,
        };
        self.push(x, 0, kind);
        self.push_text(x + TITLE_AT, 0, &title, Role::Title);
        if let Some(losses) = losses {
            self.push_text(x + TITLE_AT, self.height - 1, losses, Role::Loss);
        }
    }

    fn add_edge(&mut self, edge: &Edge) {
        let longest = edge.lines.iter().map(|line| line.chars().count()).max();
        let length = longest.unwrap_or_default().max(SHORTEST_ARROW);
        let x = self.x + GAP;
        self.push(x, self.top, ShapeKind::Arrow { length });
        for (y, line) in (self.top + 1..).zip(&edge.lines) {
            self.push_text(x, y, line, Role::Plain);
        }
        self.x = x + length + GAP;
    }

    fn add_node(&mut self, node: &Node) {
        let x = self.x;
        let named = [(&node.name, Role::Name)].into_iter();
        let plain = node.lines.iter().map(|line| (line, Role::Plain));
        let losses = node.losses.iter().map(|line| (line, Role::Loss));
        let mut width = 0;
        for (y, (line, role)) in (self.top..).zip(named.chain(plain).chain(losses)) {
            self.push_text(x, y, line, role);
            width = width.max(line.chars().count());
        }
        let height = count_lines(node);
        self.push(x, self.top, ShapeKind::Node { width, height });
        self.x += width;
    }

    fn push_text(&mut self, x: usize, y: usize, text: &str, role: Role) {
        let text = text.to_owned();
        self.push(x, y, ShapeKind::Text { text, role });
    }

    fn push(&mut self, x: usize, y: usize, kind: ShapeKind) {
        let y = self.y + y;
        self.shapes.push(Shape { x, y, kind });
    }
}

fn count_lines(node: &Node) -> usize {
    1 + node.lines.len() + node.losses.len()
}
