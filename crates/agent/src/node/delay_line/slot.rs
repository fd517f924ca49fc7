//! The place of a topology's delay line, which the first impaired link makes.

use std::sync::{Arc, Mutex};

use myelin_emulator::{DelayPoint, Network};
use myelin_spec::{Impairments, LinkEmulation};

use super::{LineReading, TopologyLine};
use crate::api::{ApiError, DelayLineStatus, DirectionStatus, ImpairmentChange};
use crate::node::{Parts, netem};
use crate::pool::lock;

/// The delay line of a topology, if a link is impaired.
#[derive(Default)]
pub(crate) struct LineSlot(Mutex<Option<Arc<TopologyLine>>>);

impl LineSlot {
    /// Returns the line.
    pub(crate) fn get(&self) -> Option<Arc<TopologyLine>> {
        lock(&self.0).clone()
    }

    /// Impairs the links of a network from position `first` on, as its topology describes them.
    ///
    /// # Errors
    /// The links need too much packet memory, or a step fails. The error names the link.
    pub(crate) fn impair_from(
        &self,
        first: usize,
        parts: &Parts,
        network: &Network,
    ) -> Result<(), ApiError> {
        let links = network.topology().links.iter().enumerate();
        let impaired: Vec<_> = links
            .skip(first)
            .filter(|(_, link)| link.is_impaired())
            .filter(|(_, link)| link.by == LinkEmulation::DelayLine)
            .collect();
        if impaired.is_empty() {
            return Ok(());
        }
        let mut slot = lock(&self.0);
        let line = if let Some(line) = &*slot {
            line.clone()
        } else {
            let all = impaired.iter().flat_map(|(_, link)| link.directions());
            let line = TopologyLine::start(parts, &network.topology().name, all)?;
            Arc::new(line)
        };
        for (position, link) in impaired {
            let point = network.delay_point(&link.name);
            let point = point.map_err(ApiError::failed)?;
            let name = &link.name;
            line.impair(number_of(network, position)?, &point, link.directions())
                .map_err(|error| ApiError::failed(format!("link `{name}`: {error}")))?;
        }
        *slot = Some(line);
        Ok(())
    }

    /// Releases the links at these positions of the topology, also after a failure.
    ///
    /// # Errors
    /// The kernel refuses to detach a program.
    pub(crate) fn release(
        &self,
        positions: impl Iterator<Item = usize>,
        network: &Network,
    ) -> Result<(), ApiError> {
        let Some(line) = self.get() else {
            return Ok(());
        };
        let numbers = positions.filter_map(|position| network.link_number(position));
        let released: Vec<_> = numbers.map(|number| line.release(number)).collect();
        released.into_iter().collect()
    }

    /// Changes delay, rate and loss of a link under traffic: of the direction from an end, or of
    /// both.
    ///
    /// # Errors
    /// Values that cannot be, a link that joins two hosts directly, or a step fails. Nothing
    /// changes.
    pub(crate) fn change(
        &self,
        parts: &Parts,
        network: &mut Network,
        position: usize,
        (change, from): (&ImpairmentChange, Option<&str>),
    ) -> Result<(), ApiError> {
        let Some(link) = network.topology().links.get(position) else {
            return Err(ApiError::failed("the link does not exist any more"));
        };
        let name = link.name.clone();
        let failed = |cause: String| ApiError::failed(format!("link `{name}`: {cause}"));
        let mut after = link.directions();
        if let Some(from) = from.filter(|from| link.ends.iter().all(|end| end != from)) {
            let [one, other] = &link.ends;
            return Err(ApiError::usage(format!(
                "link `{name}`: `{from}` is not one of its ends: write `{one}` or `{other}`"
            )));
        }
        for (direction, end) in after.iter_mut().zip(&link.ends) {
            if from.is_none_or(|from| from == end) {
                *direction = change.apply(direction).map_err(failed)?;
            }
        }
        if link.by == LinkEmulation::Netem {
            netem::impair(network, position, &after).map_err(failed)?;
            network.describe_impairments(position, after);
            return Ok(());
        }
        let point = network.delay_point(&name).map_err(ApiError::failed)?;
        self.set(parts, network, (position, &point), after)
            .map_err(|error| failed(error.to_string()))?;
        network.describe_impairments(position, after);
        Ok(())
    }

    fn set(
        &self,
        parts: &Parts,
        network: &Network,
        (position, point): (usize, &DelayPoint),
        after: [Impairments; 2],
    ) -> Result<(), ApiError> {
        let number = number_of(network, position)?;
        let mut slot = lock(&self.0);
        // Only the line joins the wires of a link.
        let is_none = after.iter().all(Impairments::is_none);
        if is_none && !matches!(point, DelayPoint::Wires(_)) {
            return slot.as_ref().map_or(Ok(()), |line| line.release(number));
        }
        if let Some(line) = &*slot {
            return line.impair(number, point, after);
        }
        let topology = &network.topology().name;
        let line = TopologyLine::start(parts, topology, after.into_iter())?;
        line.impair(number, point, after)?;
        *slot = Some(Arc::new(line));
        Ok(())
    }

    /// Returns the counters of both directions of the link with this number.
    pub(crate) fn directions(&self, number: usize) -> Option<[DirectionStatus; 2]> {
        let counters = self.get()?.counters(number)?;
        Some(counters.map(|stats| DirectionStatus {
            arrived: stats.arrived,
            arrived_bytes: stats.arrived_bytes,
            left: stats.left,
            left_bytes: stats.left_bytes,
            queue_drops: stats.queue_drops,
            lost: stats.lost,
            line_drops: stats.memory_drops + stats.transmit_drops,
            died: stats.died,
            waiting: stats.waiting,
        }))
    }

    /// Describes the line.
    pub(crate) fn status(&self) -> Option<DelayLineStatus> {
        let LineReading {
            pid,
            restarts,
            has_failed,
            stats,
            overflowed,
        } = self.get()?.read();
        Some(DelayLineStatus {
            pid,
            restarts,
            has_failed,
            waiting: stats.waiting,
            most_waiting: stats.most_waiting,
            foreign: stats.untagged + stats.unknown,
            overflowed,
            lateness: (&stats.lateness).into(),
        })
    }
}

/// Returns the number of the link at this position, which the line knows.
fn number_of(network: &Network, position: usize) -> Result<usize, ApiError> {
    let number = network.link_number(position);
    number.ok_or_else(|| ApiError::failed("the link does not exist any more"))
}
