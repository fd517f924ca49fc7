//! What can go wrong.

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A plot that could not be drawn.
    #[error("cannot draw the plot \"{plot}\": {cause}")]
    Plot {
        /// Its title.
        plot: String,
        /// The drawing library's words.
        cause: String,
    },
    /// A plot that was declared for rows that there are not.
    #[error(
        "plot \"{plot}\": the rows of table \"{table}\" have no field `{field}`; please report it"
    )]
    Field {
        /// The plot's title.
        plot: String,
        /// The table it is drawn from.
        table: String,
        /// The field that is missing, or `table` where no row is of it.
        field: String,
    },
    /// Figures that cannot be written as JSON.
    #[error("cannot write the report as JSON: {0}")]
    Json(#[from] serde_json::Error),
}
