//! How an experiment declares its plots: which rows, and what of them goes where. The declarations are data files.

use serde::Deserialize;

/// A plot of an experiment's rows. A field is named as in the rows; a misspelt one is an error of the page.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Plot {
    /// Heads its section.
    pub title: String,
    /// What a reader should know to read it.
    pub caption: String,
    /// How rows are drawn.
    pub kind: Kind,
    /// The table that its rows belong to.
    pub table: String,
    /// Fields whose values set rows apart into drawings of their own; the first one heads a row of drawings.
    pub panels: Vec<String>,
    /// The field that groups bars, or that goes along the horizontal axis of lines.
    pub along: String,
    /// Title of that axis, with the unit; groups of bars need none.
    pub along_title: String,
    /// Fields whose values, joined, are a series.
    pub series: Vec<String>,
    /// Fields that are drawn, each with what it is called where there are several. Their intervals are drawn where the rows have them.
    pub values: Vec<(String, String)>,
    /// Title of the values' axis, with the unit.
    pub values_title: String,
    /// A bound or budget: its name, and where on the axis of values it lies (of delays, in a distribution).
    pub line: Option<(String, f64)>,
    /// What a paper has in its place.
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
    /// The same over the number's logarithm.
    LogLines,
    /// Shares (0 to 1) of delays on a logarithmic axis: `along` is the delay, the one value is the share.
    Distribution,
}

/// A paper's plot or table, as far as its text states it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// Paper, figure or table.
    pub source: String,
    /// What was measured, and on what.
    pub about: String,
    /// What its figures are, with the unit.
    pub axis: String,
    /// Its figures.
    pub points: Vec<FigurePoint>,
}

/// A figure of a [`Figure`].
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FigurePoint {
    /// The value of the plot's first panel field that it belongs to; empty: to all.
    pub panel: String,
    /// Its group of bars.
    pub group: String,
    /// Its series.
    pub series: String,
    /// In the unit of the paper's axis.
    pub value: f64,
    /// Where a distribution has this share (0 to 1); unused elsewhere.
    pub share: f64,
    /// A range that the text gives.
    pub range: Option<(f64, f64)>,
    /// How the text has it: its words, and how the figure follows from them where it is not one of them.
    pub how: String,
}
