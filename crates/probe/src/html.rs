//! One self-contained HTML page of a run: no script, no font, no picture from elsewhere.
//!
//! Every plot has its figures in a table beside it. The markup is also well-formed XML, which is how it is tested.

mod log_axis;
mod markup;
mod page;
mod plot;
mod sections;

pub use page::render;
