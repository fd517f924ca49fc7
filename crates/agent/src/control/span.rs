//! The packet account of one chain between two moments, for example of a measurement.

use std::time::{Duration, Instant};

use myelin_policy::sla::{Reading, SlaWindow, span};

use crate::api::ApiError;
use crate::control::reading;
use crate::node::Node;

/// A packet that is still inside the chain after this time counts as lost.
const LOST_AFTER: Duration = Duration::from_secs(1);
const CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// The counters of the chain at the start of the span.
pub(crate) struct Span(Box<Reading>);

impl Span {
    /// Starts the span.
    ///
    /// # Errors
    /// No chain has that name.
    pub(crate) fn begin(node: &Node, name: &str) -> Result<Self, ApiError> {
        Ok(Self(Box::new(read(node, name)?)))
    }

    /// Returns the account since the start. Waits for packets that are still inside the chain. The
    /// account includes all losses of shared rings, and no losses at interfaces.
    ///
    /// # Errors
    /// The chain was removed.
    pub(crate) fn end(self, node: &Node, name: &str) -> Result<SlaWindow, ApiError> {
        let end = read(node, name)?;
        let start = Instant::now();
        let mut now = end.clone();
        while span::count_missing(&self.0, &end, &now) > 0 && start.elapsed() < LOST_AFTER {
            std::thread::sleep(CHECK_INTERVAL);
            now = read(node, name)?;
        }
        Ok(span::compute_window(&self.0, &end, &now))
    }
}

fn read(node: &Node, name: &str) -> Result<Reading, ApiError> {
    let running = node.chains.get(name).ok_or_else(|| {
        ApiError::failed(format!("chain `{name}` was removed while it was measured"))
    })?;
    Ok(reading::read_chain(&running, &node.parts.plane, None))
}
