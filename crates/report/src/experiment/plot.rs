//! Declarations of plots: the rows of a plot, and the use of their fields. Experiments have them as
//! data files.

use serde::Deserialize;

/// A plot of an experiment's rows. Fields have the names of the rows' fields; the page refuses
/// unknown names.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Plot {
    /// The heading of its section.
    pub title: String,
    /// The text above the drawings.
    pub caption: String,
    /// How rows are drawn.
    pub kind: Kind,
    /// The table with its rows.
    pub table: String,
    /// Fields whose values divide the rows into drawings. Drawings with one value of the first
    /// field form a row under that heading.
    pub panels: Vec<String>,
    /// The field that groups bars, or the horizontal axis of lines.
    pub along: String,
    /// Title of the horizontal axis, with the unit; groups of bars have none.
    pub along_title: String,
    /// Fields whose joined values name a series.
    pub series: Vec<String>,
    /// The drawn fields, each with its name if there are several. The drawing has the intervals
    /// that the rows have.
    pub values: Vec<(String, String)>,
    /// Title of the values' axis, with the unit.
    pub values_title: String,
    /// A bound or budget: its name and its value on the values' axis (in a distribution: the
    /// delays' axis).
    pub line: Option<(String, f64)>,
    /// The name of the corresponding figure of a paper.
    #[serde(rename = "published")]
    pub published_name: Option<String>,
    /// That figure, which the reader of a declaration adds.
    #[serde(skip)]
    pub published: Option<Figure>,
}

/// How rows are drawn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Bars with intervals, grouped.
    #[default]
    Bars,
    /// Parts of a whole (0 to 1), a bar for each group.
    Stacked,
    /// Lines with intervals over a number.
    Lines,
    /// As `lines`, with a logarithmic horizontal axis.
    LogLines,
    /// Shares (0 to 1) of delays on a logarithmic axis: `along` is the delay, the value the share.
    Distribution,
}

/// A paper's plot or table, as far as the paper states its values.
#[derive(Debug, Clone, Copy)]
pub struct Figure {
    /// The name by which plots refer to it.
    pub name: &'static str,
    /// Paper, figure or table.
    pub source: &'static str,
    /// The measured quantity, and the machine.
    pub about: &'static str,
    /// The title of its values' axis, with the unit.
    pub axis: &'static str,
    /// Its figures.
    pub points: &'static [FigurePoint],
}

/// A figure of a [`Figure`].
#[derive(Debug, Clone, Copy)]
pub struct FigurePoint {
    /// Its value of the plot's first panel field; empty for all values.
    pub panel: &'static str,
    /// Its group of bars.
    pub group: &'static str,
    /// Its series.
    pub series: &'static str,
    /// In the unit of the paper's axis.
    pub value: f64,
    /// Of a distribution: the share (0 to 1) of delays up to `value`.
    pub share: f64,
    /// The range that the paper states.
    pub range: Option<(f64, f64)>,
    /// Its place in the paper and the paper's words.
    pub how: &'static str,
}
