//! The account of one chain over a time that somebody chooses, a measurement for example.

use std::time::{Duration, Instant};

use myelin_policy::sla::{Reading, SlaWindow, span};

use crate::api::ApiError;
use crate::engine::Engine;
use crate::sla::reading;

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
    pub(crate) fn begin(engine: &Engine, name: &str) -> Result<Self, ApiError> {
        Ok(Self(Box::new(read(engine, name)?)))
    }

    /// What came in since, and where it went. Waits for packets that are still under way. Rings that the chain shares are told
    /// as if they were its own, and what interfaces lose is not among it.
    ///
    /// # Errors
    /// The chain was removed.
    pub(crate) fn end(self, engine: &Engine, name: &str) -> Result<SlaWindow, ApiError> {
        let end = read(engine, name)?;
        let start = Instant::now();
        let mut now = end.clone();
        while span::under_way_since(&self.0, &end, &now) > 0 && start.elapsed() < UNDER_WAY {
            std::thread::sleep(LOOK_EVERY);
            now = read(engine, name)?;
        }
        Ok(span::window(&self.0, &end, &now))
    }
}

fn read(engine: &Engine, name: &str) -> Result<Reading, ApiError> {
    engine.with_state(|state| {
        let deployed = state.chains.get(name).ok_or_else(|| {
            ApiError::failed(format!(
                "chain `{name}` does not run any more: somebody took it down"
            ))
        })?;
        Ok(reading::of(deployed, &state.node, None))
    })
}
