//! A delay line between interfaces of a test, without an agent.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use myelin_dataplane::{
    DelayLine, DelayTable, DirectionStats, Idle, Role, WorkerConfig, Xsk, XskConfig,
};
use myelin_kernel::{Capacity, DelayDirection, DelayLink, Delivery, Plane, TrafficDirection};
use myelin_linux::ethtool;
use myelin_linux::link::{Link, VethEnd, create_veth, delete};
use myelin_linux::netlink::Netlink;
use myelin_packet::link_model::LinkProfile;

/// Room for the direction's tag and a tag of the user, bytes.
const TAGS: u32 = 8;
const MTU: u32 = 1500;

/// A delay line with its internal link. Dropping the value removes both.
pub(crate) struct Line {
    directions: Vec<DelayDirection>,
    pub(crate) link: Arc<DelayLink>,
    pub(crate) worker: DelayLine,
    pub(crate) table: Arc<DelayTable>,
    near: Link,
    plane: Plane,
}

impl Line {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let id = format!("td{}-{number}", std::process::id());
        let name = |end| format!("td{}{number}{end}", std::process::id());
        let [near, far] = make_internal_link([&name('n'), &name('f')]);
        let capacity = Capacity {
            lines: 256,
            programs: 16,
            chains: 16,
            matches: 256,
            ports: 16,
            queues: 4,
        };
        let plane = Plane::create(None, capacity).expect("the plane is made");
        let link = plane
            .add_delay_link((&near.name, near.index), (&far.name, far.index))
            .expect("the programs load");
        let mut config = WorkerConfig::new(env!("CARGO_BIN_EXE_myelin"), id);
        config.args = ["worker", "--delay-line"].map(Into::into).to_vec();
        config.idle = Idle::Adaptive {
            spin: Duration::from_micros(50),
        };
        config.frames = 16_384;
        let sockets = link.sockets();
        let redirect = move |socket: std::os::fd::BorrowedFd<'_>| {
            sockets.set(0, socket).map_err(|error| error.to_string())
        };
        let open = |umem: &myelin_dataplane::Umem| {
            let config = XskConfig::new(&far.name, far.index, 0, Role::Ingress);
            let socket = Xsk::bind(umem, &config, None)?;
            Ok::<_, myelin_dataplane::Error>(socket.with_redirect(Arc::new(redirect)))
        };
        let worker = DelayLine::spawn(config, open).expect("the worker starts");
        link.attach().expect("the programs attach");
        Self {
            directions: Vec::new(),
            table: worker.table(),
            link,
            worker,
            near,
            plane,
        }
    }

    /// Leads the packets that pass `side` of an interface through the line. Returns the direction.
    pub(crate) fn add(
        &mut self,
        interface: &str,
        side: TrafficDirection,
        delivery: Delivery,
        profile: &LinkProfile,
    ) -> u16 {
        let number = self.directions.len() as u16 + 1;
        self.set(number, profile);
        let direction = self.link.load_direction(number).expect("the program loads");
        let end = (interface, index_of(interface));
        direction.attach(end, side, delivery).expect("it attaches");
        self.directions.push(direction);
        number
    }

    /// Joins two interfaces by a link with this profile in both directions.
    pub(crate) fn join(&mut self, ends: [&str; 2], profile: &LinkProfile) -> [u16; 2] {
        let [one, other] = ends;
        [(one, other), (other, one)].map(|(from, to)| {
            let delivery = Delivery::Transmit(index_of(to));
            self.add(from, TrafficDirection::In, delivery, profile)
        })
    }

    /// Changes a direction's profile.
    pub(crate) fn set(&self, direction: u16, profile: &LinkProfile) {
        let set = self.table.set_profile(direction, profile, direction.into());
        set.expect("the number is valid");
    }

    pub(crate) fn stats(&self, direction: u16) -> DirectionStats {
        self.table
            .direction(direction)
            .expect("the direction exists")
    }

    /// Returns the packets that entered a direction at the interface.
    pub(crate) fn entered(&self, direction: u16) -> u64 {
        self.directions[usize::from(direction) - 1]
            .counters()
            .packets
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let deleted =
            Netlink::open().and_then(|mut netlink| netlink.apply([delete(&self.near.id())]));
        if let Err(error) = deleted {
            println!("cannot delete {}: {error}", self.near.name);
        }
    }
}

/// Returns the index of an interface.
pub(crate) fn index_of(interface: &str) -> u32 {
    let text = std::fs::read_to_string(format!("/sys/class/net/{interface}/ifindex"));
    let text = text.expect("the interface exists");
    text.trim().parse().expect("the index is a number")
}

fn make_internal_link(names: [&str; 2]) -> [Link; 2] {
    let mut netlink = Netlink::open().expect("netlink opens");
    let [near, far] = names.map(|name| VethEnd {
        mtu: Some(MTU + TAGS),
        ..VethEnd::named(name)
    });
    let made = create_veth(&near, &far).and_then(|request| netlink.apply([request]));
    made.expect("the link is made");
    names.map(|name| {
        let id = netlink.link(name).expect("the end exists").id();
        ethtool::set_up_without_offloads(&mut netlink, &id).expect("the end is set up");
        netlink.link(name).expect("the end exists")
    })
}
