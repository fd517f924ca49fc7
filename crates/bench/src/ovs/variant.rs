//! Functions behind a switch, each in a separate network namespace on a separate port.
//!
//! A function sends every frame back, so only the path to it and back is measured.

use std::any::Any;
use std::os::fd::AsFd;

use myelin_kernel::Hook;
use myelin_linux::link::Mac;
use myelin_linux::netlink::Netlink;

use super::{Ports, Switch};
use crate::network::{self, CLIENT_LINK, MiddleNamespace, Network, SERVER_LINK};
use crate::variant::{Variant, polling_core};
use crate::{Error, ebpf};

/// Port numbers in the switch. Those of the functions follow.
const CLIENT: usize = 1;
const SERVER: usize = 2;

/// A switch with functions behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) ports: Ports,
    pub(crate) functions: usize,
    /// Whether replies pass the switch and the functions in reverse order. Otherwise they use a
    /// separate cable.
    pub(crate) both_ways: bool,
}

/// A variant and its processes.
pub(crate) struct PeerVariant {
    pub(crate) variant: Variant,
    pub(crate) pids: Vec<u32>,
}

impl Layout {
    fn name(self) -> String {
        let ways = if self.both_ways { ", both ways" } else { "" };
        format!("OVS {}, {}{ways}", self.ports.name(), self.functions)
    }

    fn about(self) -> String {
        let how = match self.ports {
            Ports::System => "packet sockets, sleeping",
            Ports::AfXdp => "AF_XDP sockets, polling",
            Ports::Dpdk => "DPDK's net_af_xdp, polling",
        };
        let ways = if self.both_ways {
            "replies pass them too"
        } else {
            "replies use a separate cable"
        };
        format!("namespaces behind Open vSwitch ({how}); {ways}")
    }
}

/// Makes all variants. Their switches start at the same time.
pub(crate) fn build(layouts: &[Layout]) -> Result<Vec<PeerVariant>, Error> {
    let started: Vec<_> = layouts
        .iter()
        .map(|layout| StartingSwitch::new(*layout))
        .collect::<Result<_, _>>()?;
    started.into_iter().map(StartingSwitch::finish).collect()
}

/// A starting switch.
struct StartingSwitch {
    layout: Layout,
    switch: Switch,
    network: Network,
    functions: Vec<Box<dyn Any + Send>>,
}

impl StartingSwitch {
    fn new(layout: Layout) -> Result<Self, Error> {
        let network = if layout.both_ways {
            Network::create(false)?
        } else {
            Network::with_reply_cable()?
        };
        let middle = &network.middle;
        let names: Vec<_> = (1..=layout.functions)
            .map(|number| format!("f{number}"))
            .collect();
        let functions = names
            .iter()
            .map(|name| add_function(middle, name))
            .collect::<Result<_, _>>()?;
        let mut links = vec![CLIENT_LINK, SERVER_LINK];
        links.extend(names.iter().map(String::as_str));
        let switch = Switch::start(layout.ports, &middle.netns, &links, polling_core()?)?;
        Ok(Self {
            layout,
            switch,
            network,
            functions,
        })
    }

    fn finish(mut self) -> Result<PeerVariant, Error> {
        let (layout, network) = (self.layout, self.network);
        self.switch.wait_until_ready()?;
        self.switch
            .install_rules(&rules(layout, network.client.mac, network.server.mac))?;
        let (worker, pids) = (self.switch.pid(), self.switch.pids());
        let sockets = network.sockets()?;
        // The switch is removed before its links.
        let mut parts: Vec<Box<dyn Any + Send>> = vec![Box::new(self.switch)];
        parts.extend(self.functions);
        parts.push(Box::new(network));
        let variant = Variant::new(layout.name(), layout.about(), sockets, vec![worker], parts)?;
        Ok(PeerVariant { variant, pids })
    }
}

/// A namespace that sends back all frames from the link `name`.
fn add_function(middle: &MiddleNamespace, name: &str) -> Result<Box<dyn Any + Send>, Error> {
    let netns = middle.add_namespace(name)?;
    let attached = netns.enter(|| {
        let inner = Netlink::open()?.link("eth0")?.index;
        ebpf::attach(ebpf::load_bounce()?.as_fd(), Hook::Xdp, inner)
    })??;
    network::enable_napi(&middle.netns, name)?;
    Ok(Box::new((attached, netns)))
}

/// Forwarding rules: from the client through the functions in order to the server, and in reverse.
fn rules(layout: Layout, client: Mac, server: Mac) -> String {
    let functions = SERVER + 1..=SERVER + layout.functions;
    let path: Vec<usize> = [CLIENT]
        .into_iter()
        .chain(functions)
        .chain([SERVER])
        .collect();
    let back: Vec<usize> = path.iter().rev().copied().collect();
    let mut directions = vec![(server, path)];
    if layout.both_ways {
        directions.push((client, back));
    }
    directions
        .iter()
        .flat_map(|(to, path)| {
            path.windows(2).map(move |hop| {
                let [from, next] = [hop[0], hop[1]];
                format!("in_port={from},dl_dst={to},actions=output:{next}\n")
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use myelin_measure::Mode;

    use super::*;
    use crate::Session;

    #[test]
    fn rules_forward_through_all_functions() {
        let layout = Layout {
            ports: Ports::System,
            functions: 2,
            both_ways: false,
        };
        let [client, server] = [Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])];
        let there = "in_port=1,dl_dst=02:00:00:00:00:02,actions=output:3\n\
                     in_port=3,dl_dst=02:00:00:00:00:02,actions=output:4\n\
                     in_port=4,dl_dst=02:00:00:00:00:02,actions=output:2\n";
        assert_eq!(rules(layout, client, server), there);
        let layout = Layout {
            functions: 1,
            both_ways: true,
            ..layout
        };
        assert_eq!(
            rules(layout, client, server),
            "in_port=1,dl_dst=02:00:00:00:00:02,actions=output:3\n\
             in_port=3,dl_dst=02:00:00:00:00:02,actions=output:2\n\
             in_port=2,dl_dst=02:00:00:00:00:01,actions=output:3\n\
             in_port=3,dl_dst=02:00:00:00:00:01,actions=output:1\n"
        );
    }

    #[test]
    fn packets_pass_every_kind_of_switch() {
        // A packet may be late on a busy machine. The round trips are an error if most are.
        pass_every_kind_of_switch(|_| {});
    }

    #[test]
    #[ignore = "thorough: no packet may take 100 ms"]
    fn no_packet_is_late_in_any_kind_of_switch() {
        pass_every_kind_of_switch(|trips| {
            assert!(trips.iter().all(|ns| *ns < u32::MAX), "{trips:?}");
        });
    }

    /// Checks the round trips through switches of every kind.
    fn pass_every_kind_of_switch(check: impl Fn(&[u32])) {
        if !nix::unistd::geteuid().is_root() {
            println!("SKIP: network namespaces need root");
            return;
        }
        let cancelled = AtomicBool::new(false);
        let session = Session::quick(&cancelled);
        for ports in Ports::ALL {
            let layouts = [(1, false), (2, true)].map(|(functions, both_ways)| Layout {
                ports,
                functions,
                both_ways,
            });
            let peers = match build(&layouts) {
                Ok(peers) => peers,
                Err(Error::Peer { peer, reason }) => {
                    println!("SKIP: {peer}: {reason}");
                    continue;
                }
                Err(error) => panic!("{ports:?}: {error}"),
            };
            let pids: Vec<u32> = peers.iter().flat_map(|peer| peer.pids.clone()).collect();
            assert_eq!(pids.len(), 4);
            for peer in &peers {
                let trips = peer.variant.round_trips_ns(Mode::Inline, 256, 20, session);
                match trips {
                    Ok(trips) => check(&trips),
                    // The experiment leaves such ports out, with the reason.
                    Err(error @ Error::Lost { .. }) if matches!(ports, Ports::System) => {
                        println!("{error}");
                    }
                    Err(error) => panic!("{ports:?}: {error}"),
                }
            }
            drop(peers);
            for pid in pids {
                let command = myelin_linux::procfs::command_line(pid).unwrap_or_default();
                assert!(!command.concat().contains("ovs"), "{command:?} is left");
            }
        }
    }
}
