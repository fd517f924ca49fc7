//! How an experiment declares its plots: which rows, and what of them goes where.

/// A plot of an experiment's rows. A field is named as in the rows; a misspelt one is an error of the page.
#[derive(Debug, Clone, Copy)]
pub struct Plot {
    /// Heads its section.
    pub title: &'static str,
    /// What a reader should know to read it.
    pub caption: &'static str,
    /// How rows are drawn.
    pub kind: Kind,
    /// The table that its rows belong to.
    pub table: &'static str,
    /// Fields whose values set rows apart into drawings of their own; the first one heads a row of drawings.
    pub panels: &'static [&'static str],
    /// The field that groups bars, or that goes along the horizontal axis of lines.
    pub along: &'static str,
    /// Title of that axis, with the unit; groups of bars need none.
    pub along_title: &'static str,
    /// Fields whose values, joined, are a series.
    pub series: &'static [&'static str],
    /// Fields that are drawn, each with what it is called where there are several. Their intervals are drawn where the rows have them.
    pub values: &'static [(&'static str, &'static str)],
    /// Title of the values' axis, with the unit.
    pub values_title: &'static str,
    /// A bound or budget: its name, and where on the axis of values it lies (of delays, in a distribution).
    pub line: Option<(&'static str, f64)>,
    /// What a paper has in its place.
    pub published: Option<&'static Figure>,
}

/// How rows are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Bars with intervals, grouped.
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

impl Plot {
    /// Nothing in particular.
    const NONE: Self = Self {
        title: "",
        caption: "",
        kind: Kind::Bars,
        table: "",
        panels: &[],
        along: "",
        along_title: "",
        series: &[],
        values: &[],
        values_title: "",
        line: None,
        published: None,
    };
    /// Median round trips of variants, a drawing for each payload.
    pub const ROUND_TRIPS: Self = Self {
        title: "Round trips",
        table: "round trips",
        panels: &["payload_bytes"],
        along: "variant",
        values: &[("rtt_p50_us", "")],
        values_title: "round trip, median, us",
        ..Self::NONE
    };
    /// Of that kind.
    pub const fn of(kind: Kind) -> Self {
        Self { kind, ..Self::NONE }
    }
}

/// A paper's plot or table, as far as its text states it.
#[derive(Debug, Clone, Copy)]
pub struct Figure {
    /// Paper, figure or table.
    pub source: &'static str,
    /// What was measured, and on what.
    pub about: &'static str,
    /// What its figures are, with the unit.
    pub axis: &'static str,
    /// Its figures.
    pub points: &'static [FigurePoint],
}

/// A figure of a [`Figure`].
#[derive(Debug, Clone, Copy)]
pub struct FigurePoint {
    /// The value of the plot's first panel field that it belongs to; empty: to all.
    pub panel: &'static str,
    /// Its group of bars.
    pub group: &'static str,
    /// Its series.
    pub series: &'static str,
    /// In the unit of the paper's axis.
    pub value: f64,
    /// Where a distribution has this share (0 to 1); unused elsewhere.
    pub share: f64,
    /// A range that the text gives.
    pub range: Option<(f64, f64)>,
    /// How the text has it: its words, and how the figure follows from them where it is not one of them.
    pub how: &'static str,
}

impl FigurePoint {
    /// Nothing in particular.
    pub const NONE: Self = Self {
        panel: "",
        group: "",
        series: "",
        value: 0.0,
        share: 0.0,
        range: None,
        how: "",
    };
}
