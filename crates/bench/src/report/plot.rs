//! How an experiment declares its plots: which rows, and what of them goes where.

use crate::published::Figure;

/// A plot of an experiment's rows. A field is named as in the rows; a misspelt one is an error of the page.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plot {
    pub(crate) title: &'static str,
    /// What a reader should know to read it.
    pub(crate) caption: &'static str,
    pub(crate) kind: Kind,
    /// The table that its rows belong to.
    pub(crate) table: &'static str,
    /// Fields whose values set rows apart into drawings of their own; the first one heads a row of drawings.
    pub(crate) panels: &'static [&'static str],
    /// The field that groups bars, or that goes along the horizontal axis of lines.
    pub(crate) along: &'static str,
    /// Title of that axis, with the unit; groups of bars need none.
    pub(crate) along_title: &'static str,
    /// Fields whose values, joined, are a series.
    pub(crate) series: &'static [&'static str],
    /// Fields that are drawn, each with what it is called where there are several. Their intervals are drawn where the rows have them.
    pub(crate) values: &'static [(&'static str, &'static str)],
    /// Title of the values' axis, with the unit.
    pub(crate) values_title: &'static str,
    /// A bound or budget: its name, and where on the axis of values it lies (of delays, in a distribution).
    pub(crate) line: Option<(&'static str, f64)>,
    /// What a paper has in its place.
    pub(crate) published: Option<&'static Figure>,
}

/// How rows are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
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
    pub(crate) const ROUND_TRIPS: Self = Self {
        title: "Round trips",
        table: "round trips",
        panels: &["payload_bytes"],
        along: "variant",
        values: &[("rtt_p50_us", "")],
        values_title: "round trip, median, us",
        ..Self::NONE
    };
    /// Of that kind.
    pub(crate) const fn of(kind: Kind) -> Self {
        Self { kind, ..Self::NONE }
    }
}
