//! Errors of this crate.

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The drawing library failed.
    #[error("cannot draw the plot \"{plot}\": {cause}")]
    Plot {
        /// The plot's title.
        plot: String,
        /// The library's message.
        cause: String,
    },
    /// A plot names a field or a table that no row has.
    #[error(
        "plot \"{plot}\": the rows of table \"{table}\" have no field `{field}`; please report this fault"
    )]
    Field {
        /// The plot's title.
        plot: String,
        /// The table with its rows.
        table: String,
        /// The missing field; `table` if no row belongs to the table.
        field: String,
    },
    /// JSON cannot represent a figure.
    #[error("cannot write the report as JSON: {0}")]
    Json(#[from] serde_json::Error),
}
