//! The controller: decides on a server, starts the service there, steers the client's packets, and
//! removes the old service, in this order.

use std::thread;
use std::time::{Duration, Instant};

use myelin_measure::clock::now_ns;

use super::lab::{Lab, SERVERS, Start};
use crate::{Error, Fault, Session};

/// A server is better if it has less than this share of the latency of the service's server.
const BETTER: f64 = 0.5;
/// The old service answers the datagrams that it has: longer than a period of its limit.
const DRAIN: Duration = Duration::from_millis(200);
/// Longest time from a trigger to the decision.
const PATIENCE: Duration = Duration::from_secs(60);
/// The chains that steer. The more specific match wins, so the client is never without a chain.
const CHAINS: [&str; 2] = ["general", "special"];

/// Where the service is, and by which chain the client reaches it.
pub(super) struct Controller<'a> {
    session: Session<'a>,
    lab: &'a Lab,
    at: Option<usize>,
    steered: usize,
}

/// A state to transfer.
#[derive(Debug, Clone, Copy)]
pub(super) struct State {
    pub(super) bytes: u64,
    /// Pause of the old service before the transfer, ms.
    pub(super) pause_ms: u64,
}

/// Times of a migration, ns.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Steps {
    pub(super) trigger: u64,
    pub(super) decided: u64,
    pub(super) started: u64,
    pub(super) steered: u64,
    pub(super) ended: u64,
    /// The server.
    pub(super) server: usize,
}

impl<'a> Controller<'a> {
    pub(super) fn new(session: Session<'a>, lab: &'a Lab) -> Self {
        Self {
            session,
            lab,
            at: None,
            steered: 0,
        }
    }

    /// The server of the service.
    pub(super) fn server(&self) -> Result<usize, Error> {
        self.at
            .ok_or_else(|| Error::Internal("the service was not started".to_owned()))
    }

    /// Moves the service to the best server for the agent of a station, as soon as one is better.
    pub(super) fn migrate(
        &mut self,
        station: usize,
        trigger: u64,
        state: Option<State>,
    ) -> Result<Steps, Error> {
        let server = self.decide(station)?;
        let decided = now_ns();
        let old = self
            .at
            .filter(|_| !self.session.has_fault(Fault::RemoveFirst));
        if let (Some(at), None) = (self.at, old) {
            self.lab.remove_container((SERVERS[at], "service"))?;
        }
        let transfer = state.zip(old);
        let start = transfer.map_or(Start::Serving, |_| Start::Waiting);
        self.lab.start_service(server, start)?;
        let started = now_ns();
        let retired = self.steer(server)?;
        let steered = now_ns();
        if let Some((state, old)) = transfer {
            self.lab
                .transfer_state([old, server], state.bytes, state.pause_ms)?;
        }
        if let Some(chain) = retired {
            self.remove_chain(chain)?;
        }
        if let Some(old) = old {
            thread::sleep(DRAIN);
            self.lab.remove_container((SERVERS[old], "service"))?;
        }
        self.at = Some(server);
        Ok(Steps {
            trigger,
            decided,
            started,
            steered,
            ended: now_ns(),
            server,
        })
    }

    /// Asks the agent of a station until a server is better.
    fn decide(&self, station: usize) -> Result<usize, Error> {
        let start = Instant::now();
        loop {
            self.session.check()?;
            let latencies = self.lab.latencies_ms(station)?;
            let servers = 0..latencies.len();
            let best = servers.min_by(|one, other| latencies[*one].total_cmp(&latencies[*other]));
            let best = best.unwrap_or_default();
            let is_better = |at: usize| latencies[best] < BETTER * latencies[at];
            if self.at.is_none_or(is_better) {
                return Ok(best);
            }
            if start.elapsed() > PATIENCE {
                let reason = format!("no server is better: latencies {latencies:.1?} ms");
                return Err(Error::Internal(reason));
            }
        }
    }

    /// Steers the client's packets to a server. Returns a chain that takes no packet any more.
    fn steer(&mut self, server: usize) -> Result<Option<&'static str>, Error> {
        let (new, is_special) = (CHAINS[self.steered % 2], self.steered % 2 == 1);
        let old = (self.steered > 0).then_some(CHAINS[(self.steered + 1) % 2]);
        self.lab.up_chain(new, is_special, server)?;
        self.steered += 1;
        match old {
            // Its match is more specific.
            Some(special) if !is_special => self.remove_chain(special).map(|()| None),
            old => Ok(old),
        }
    }

    fn remove_chain(&self, chain: &str) -> Result<(), Error> {
        let name = format!("{}-{chain}", self.lab.topology);
        Ok(self.lab.agent.client.down(&name).map(drop)?)
    }
}
