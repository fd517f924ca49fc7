//! The account of one chain between two moments, for example of a measurement.

use std::time::{Duration, Instant};

use myelin_policy::sla::{Reading, SlaWindow, span};

use crate::api::ApiError;
use crate::control::reading;
use crate::node::Node;

/// What has not left after this time is lost.
const UNDER_WAY: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The chain as it was at the begin.
pub(crate) struct Span(Box<Reading>);

impl Span {
    /// Begins now.
    ///
    /// # Errors
    /// There is no such chain.
    pub(crate) fn begin(node: &Node, name: &str) -> Result<Self, ApiError> {
        Ok(Self(Box::new(read(node, name)?)))
    }

    /// What came in since, and where it went. Waits for packets that are still under way. Rings that the chain shares are told
    /// as if they were its own, and what interfaces lose is not among it.
    ///
    /// # Errors
    /// The chain was removed.
    pub(crate) fn end(self, node: &Node, name: &str) -> Result<SlaWindow, ApiError> {
        let end = read(node, name)?;
        let start = Instant::now();
        let mut now = end.clone();
        while span::under_way_since(&self.0, &end, &now) > 0 && start.elapsed() < UNDER_WAY {
            std::thread::sleep(LOOK_EVERY);
            now = read(node, name)?;
        }
        Ok(span::window(&self.0, &end, &now))
    }
}

fn read(node: &Node, name: &str) -> Result<Reading, ApiError> {
    let running = node.chains.get(name).ok_or_else(|| {
        ApiError::failed(format!(
            "chain `{name}` does not run any more: somebody took it down"
        ))
    })?;
    Ok(reading::of(&running, &node.parts.plane, None))
}
