//! The bridges of a switch. The kernel's bridge has at most 1023 ports, so a switch with more ports
//! has several bridges, each joined to the first. An OpenFlow switch has a bridge for each link,
//! which hands the link's frames to a port of the switch and back.

/// Largest number of ports of a bridge (`BR_MAX_PORTS` minus the bridge itself).
const MAX_PORTS: usize = 1023;
/// Ports of a joined bridge for links; one port is its joint.
const PORTS_OF_JOINED: usize = MAX_PORTS - 1;

/// The ports that the bridges of one switch have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SwitchPorts {
    /// Links at each bridge. With several bridges, the first one of a learning switch holds only
    /// joints.
    links: Vec<usize>,
    is_openflow: bool,
}

impl SwitchPorts {
    /// Plans the bridges of a switch with this many links.
    pub(super) fn new(links: usize) -> Self {
        let bridges = if links <= MAX_PORTS {
            1
        } else {
            1 + links.div_ceil(PORTS_OF_JOINED)
        };
        Self {
            links: vec![0; bridges],
            is_openflow: false,
        }
    }

    /// Plans the bridges of an OpenFlow switch with this many links.
    pub(super) fn openflow(links: usize) -> Self {
        Self {
            links: vec![0; links],
            is_openflow: true,
        }
    }

    /// Whether the switch is an OpenFlow switch.
    pub(super) fn is_openflow(&self) -> bool {
        self.is_openflow
    }

    /// Number of bridges.
    pub(super) fn bridges(&self) -> usize {
        self.links.len()
    }

    /// Takes a free port, and returns the position of its bridge; `None` if all ports are taken.
    pub(super) fn take(&mut self) -> Option<usize> {
        let (first, most) = match self.links.len() {
            _ if self.is_openflow => (0, 1),
            1 => (0, MAX_PORTS),
            _ => (1, PORTS_OF_JOINED),
        };
        let free = (first..self.links.len()).find(|bridge| self.links[*bridge] < most)?;
        self.links[free] += 1;
        Some(free)
    }

    /// Frees a port of the bridge at this position.
    pub(super) fn free(&mut self, bridge: usize) {
        if let Some(links) = self.links.get_mut(bridge) {
            *links = links.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_bridge_has_more_than_1023_ports() {
        for (links, bridges) in [
            (0, 1),
            (1023, 1),
            (1024, 3),
            (2044, 3),
            (2045, 4),
            (65_535, 66),
        ] {
            let mut switch = SwitchPorts::new(links);
            assert_eq!(switch.bridges(), bridges, "{links}");
            for _ in 0..links {
                assert!(switch.take().is_some(), "{links}");
            }
            let joints = bridges - 1;
            assert!(joints <= MAX_PORTS);
            for (position, taken) in switch.links.iter().enumerate() {
                let joints = if position == 0 { joints } else { 1 };
                assert!(taken + joints <= MAX_PORTS, "{links}: {switch:?}");
            }
        }
    }

    #[test]
    fn each_port_of_an_openflow_switch_has_a_bridge() {
        let mut switch = SwitchPorts::openflow(2);
        assert_eq!(switch.bridges(), 2);
        assert_eq!([switch.take(), switch.take()], [Some(0), Some(1)]);
        assert_eq!(switch.take(), None);
        switch.free(0);
        assert_eq!(switch.take(), Some(0));
        assert_eq!(SwitchPorts::openflow(0).take(), None);
    }

    #[test]
    fn a_freed_port_is_taken_again() {
        let mut switch = SwitchPorts::new(1023);
        for _ in 0..1023 {
            assert_eq!(switch.take(), Some(0));
        }
        assert_eq!(switch.take(), None);
        switch.free(0);
        assert_eq!(switch.take(), Some(0));
    }
}
