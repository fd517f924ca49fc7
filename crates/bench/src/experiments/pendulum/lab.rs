//! A topology with a host for each plant and one for all controllers, and a chain for each
//! direction of each loop.

use std::fmt::Write as _;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::Setting;
use super::control_loop::{self, ControlLoop, Trace};
use crate::Error;
use crate::lab::{self, Lab};

/// Port of the first controller.
const PORT: u16 = 9000;
/// The controllers' host is the first of the topology.
const CONTROLLER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
/// Longer than a delay.
const PAUSE: Duration = Duration::from_millis(100);

/// A running topology with loops.
pub(super) struct Loops {
    lab: Lab,
    loops: Vec<Ends>,
}

/// The sockets of a loop, connected.
pub(super) struct Ends {
    pub(super) plant: UdpSocket,
    pub(super) controller: UdpSocket,
}

impl Loops {
    /// The first `unchained` loops have no chain.
    pub(super) fn start(
        program: &Path,
        settings: &[Setting],
        unchained: usize,
    ) -> Result<Self, Error> {
        let lab = Lab::start(program, |name| lab_text(name, settings, unchained))?;
        let mut loops = Vec::new();
        for number in 0..settings.len() {
            let port = PORT + number as u16;
            let ends = Ends {
                plant: lab.socket(1 + number, 0)?,
                controller: lab.socket(0, port)?,
            };
            let connected = ends.connect(SocketAddr::from((CONTROLLER, port)));
            connected.map_err(|cause| Error::system("connect plant and controller", cause))?;
            loops.push(ends);
        }
        Ok(Self { lab, loops })
    }

    /// Balances all pendulums at once, from this angle, for this time.
    pub(super) fn balance(
        &self,
        settings: &[Setting],
        start_deg: f64,
        seconds: u64,
        cancelled: &AtomicBool,
    ) -> Result<Vec<Trace>, Error> {
        let loops = self.loops.iter().zip(settings);
        let loops = loops.map(|(ends, setting)| {
            ControlLoop::new(ends, start_deg, setting.interval_ms * 1_000_000)
        });
        control_loop::run(loops.collect(), Duration::from_secs(seconds), cancelled)
    }

    /// The number of packets that left the chains, when no packet leaves any more.
    pub(super) fn packets_of_chains(&self) -> Result<u64, Error> {
        self.lab.packets_of_chains(PAUSE)
    }
}

impl Ends {
    /// Connects both sockets. All addresses are then known.
    fn connect(&self, controller: SocketAddr) -> io::Result<()> {
        self.plant.connect(controller)?;
        let plant = lab::greet(&self.plant, &self.controller)?;
        self.controller.connect(plant)?;
        lab::greet(&self.controller, &self.plant)?;
        lab::drain(&self.controller)?;
        lab::drain(&self.plant)
    }
}

/// The chains have kernel functions: what they redirect to a delayed link is delayed there.
fn lab_text(name: &str, settings: &[Setting], unchained: usize) -> String {
    let (mut hosts, mut links, mut chains) = (String::new(), String::new(), String::new());
    for (number, setting) in settings.iter().enumerate() {
        let (port, plant) = (PORT + number as u16, format!("plant-{number}"));
        let half_us = setting.delay_ms * 500;
        // Writing to a string cannot fail.
        let _ = write!(hosts, ", {plant}");
        let _ = writeln!(
            links,
            "    - {{ ends: [ {plant}, s ], delay: {half_us}us }}"
        );
        if number < unchained {
            continue;
        }
        for (chain, reverse, packets, ingress, egress) in [
            (
                "sensor",
                "motor",
                format!("destination: {CONTROLLER}/32, destinationPort: {port}"),
                plant.as_str(),
                "controller",
            ),
            (
                "motor",
                "sensor",
                format!("source: {CONTROLLER}/32, sourcePort: {port}"),
                "controller",
                plant.as_str(),
            ),
        ] {
            let _ = write!(
                chains,
                "---\napiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\n\
                 metadata: {{ name: {name}-{chain}-{number} }}\nspec:\n  \
                 match: {{ protocol: udp, {packets} }}\n  \
                 functions: [ {{ name: count, kind: monitor, space: kernel }} ]\n  \
                 ports: {{ ingress: {name}/{ingress}, egress: {name}/{egress} }}\n  \
                 reverse: {name}-{reverse}-{number}\n"
            );
        }
    }
    format!(
        "apiVersion: myelin.dev/v1alpha1\nkind: Topology\nmetadata: {{ name: {name} }}\nspec:\n  \
         hosts: [ controller{hosts} ]\n  switches: [ s ]\n  links:\n    \
         - {{ ends: [ controller, s ] }}\n{links}{chains}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lab_is_valid() {
        let text = lab_text("lab", &super::super::SETTINGS, 0);
        let objects = crate::agents::chain_source(text).parse_objects().unwrap();
        let lab = &objects.topologies[0];
        assert_eq!(lab.hosts[0].addresses[0].address, CONTROLLER);
        assert_eq!(lab::address_of(0), CONTROLLER);
        assert_eq!((lab.hosts.len(), objects.chains.len()), (6, 10));
        let link = lab.link("plant-0-s").unwrap();
        assert_eq!(link.impairments.delay_ns, 25_000_000);
    }
}
