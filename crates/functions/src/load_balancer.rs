//! `load-balancer`: spreads flows over backends by Maglev hashing, and keeps each flow with its
//! backend.
//!
//! The forward side replaces the destination address by that of the flow's backend; ports stay. The
//! reply side (`reverseOf`) gives what the backends answer its source back: the address that the
//! client had sent to. Both work on one [`Affinity`].
//!
//! A flow stays with its backend as long as that is one of the configuration and the flow does not
//! pause for longer than the timeout. Dropped are: packets without ports (fragments, protocols other
//! than UDP and TCP), since they show no flow; packets with an authentication header (RFC 4302), which
//! covers the addresses; packets of a family without a backend; a flow whose answers would look like
//! those of another one, that is from the same client address and port, by way of another address, to
//! the same backend; on the reply side, packets of no living flow.
//!
//! When a table is full the flow that was used longest ago is put out, and counted. What clients send is counted by flow.

use std::net::IpAddr;

use myelin_packet::maglev::{Backend, MaglevTable};
use myelin_packet::{FiveTuple, FlowCounts, FlowKey, FlowTotals};
use myelin_spec::{LoadBalancerConfig, Side};

use crate::flow_table::FlowTable;
use crate::nat::rewrite::Fields;
use crate::{Emitter, FlowPage, Packet, Stateful, Verdict};

/// The record for the replies of a flow is looked at again after this, for it may have been put out:
/// one second.
const CONFIRM_NS: u64 = 1_000_000_000;

/// What is known of flows, by both sides.
#[derive(Debug)]
pub struct Affinity {
    flows: FlowTable<FlowKey, Flow>,
    replies: FlowTable<FlowKey, Reply>,
    begun: u64,
}

/// A flow as the clients send it.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    /// The backend's.
    address: [u8; 16],
    counts: FlowCounts,
    /// When the record for its replies was last written.
    confirmed_ns: u64,
    /// Number of the backend, in the configuration of that time.
    backend: u32,
}

/// A flow as the backends answer it.
#[derive(Clone, Copy, Debug, Default)]
struct Reply {
    /// What the client had sent to.
    address: [u8; 16],
    last_ns: u64,
}

impl Affinity {
    /// With room for that many flows.
    pub fn new(flows: usize) -> Self {
        Self {
            flows: FlowTable::new(flows),
            replies: FlowTable::new(flows),
            begun: 0,
        }
    }
}

/// The load balancer, one side of it.
#[derive(Debug)]
pub struct LoadBalancer {
    side: Side,
    timeout_ns: u64,
    backends: Vec<Backend>,
    v4: MaglevTable,
    v6: MaglevTable,
}

impl LoadBalancer {
    /// The function of that configuration on a side of the affinity.
    pub fn new(config: &LoadBalancerConfig, side: Side) -> Self {
        let [v4, v6] = config.tables();
        Self {
            side,
            timeout_ns: config.timeout_ns,
            backends: config.backends(),
            v4,
            v6,
        }
    }

    /// To a backend.
    #[inline]
    fn send(&self, affinity: &mut Affinity, packet: &mut Packet<'_>) -> Option<()> {
        let now_ns = packet.meta().stamp_ns;
        let headers = *packet.headers();
        if !headers.flags.has_ports() {
            return None;
        }
        let key = FlowKey::of(&headers, packet.bytes())?;
        let is_ipv6 = headers.flags.is_ipv6();
        let backend = self.backend_of(affinity, &key, (is_ipv6, packet.len() as u64), now_ns)?;
        let frame = packet.bytes_mut();
        let fields = Fields::find(frame, &headers, Side::Reply)?;
        let old = fields.endpoint(frame)?;
        let mut new = old;
        new.address = backend.address;
        fields.write(frame, &old, &new)?;
        if backend.has_mac != 0 {
            frame.get_mut(..6)?.copy_from_slice(&backend.mac);
        }
        Some(())
    }

    /// The backend of a flow, which is noted with its packet of so many bytes.
    #[inline]
    fn backend_of(
        &self,
        affinity: &mut Affinity,
        key: &FlowKey,
        (is_ipv6, bytes): (bool, u64),
        now_ns: u64,
    ) -> Option<&Backend> {
        let Affinity {
            flows,
            replies,
            begun,
        } = affinity;
        if let Some(flow) = flows.use_flow(key)
            && now_ns.saturating_sub(flow.counts.last_ns) <= self.timeout_ns
            && let Some(number) = self.number_of(flow, is_ipv6)
        {
            let backend = &self.backends[number];
            flow.backend = number as u32;
            if now_ns.saturating_sub(flow.confirmed_ns) >= CONFIRM_NS {
                self.confirm(replies, key, backend, now_ns)?;
                flow.confirmed_ns = now_ns;
            }
            flow.counts.last_ns = now_ns;
            flow.counts.packets += 1;
            flow.counts.bytes += bytes;
            return Some(backend);
        }
        let table = if is_ipv6 { &self.v6 } else { &self.v4 };
        let number = table.look_up(key)?;
        let backend = self.backends.get(usize::from(number))?;
        self.confirm(replies, key, backend, now_ns)?;
        let flow = Flow {
            address: backend.address,
            counts: FlowCounts {
                packets: 1,
                bytes,
                first_ns: now_ns,
                last_ns: now_ns,
            },
            confirmed_ns: now_ns,
            backend: number.into(),
        };
        flows.insert(*key, flow);
        *begun += 1;
        Some(backend)
    }

    /// The number that a flow's backend has now, if it is still there.
    #[inline]
    fn number_of(&self, flow: &Flow, is_ipv6: bool) -> Option<usize> {
        let is_it = |backend: &Backend| {
            backend.address == flow.address && backend.is_ipv6 == u8::from(is_ipv6)
        };
        let number = flow.backend as usize;
        if self.backends.get(number).is_some_and(is_it) {
            return Some(number);
        }
        self.backends.iter().position(is_it)
    }

    /// Notes what the replies of a flow are to come from; `None` when they would look like those of
    /// another flow.
    fn confirm(
        &self,
        replies: &mut FlowTable<FlowKey, Reply>,
        key: &FlowKey,
        backend: &Backend,
        now_ns: u64,
    ) -> Option<()> {
        let tuple = key.five_tuple();
        let address = Backend::new(tuple.destination, None).address;
        let answers = FlowKey::new(
            &FiveTuple {
                destination: ip(backend),
                ..tuple
            }
            .reversed(),
        );
        let taken = replies.get(&answers).is_some_and(|reply| {
            reply.address != address && now_ns.saturating_sub(reply.last_ns) <= self.timeout_ns
        });
        if taken {
            return None;
        }
        let reply = Reply {
            address,
            last_ns: now_ns,
        };
        replies.insert(answers, reply);
        Some(())
    }

    /// Back to the client.
    #[inline]
    fn answer(
        &self,
        replies: &mut FlowTable<FlowKey, Reply>,
        packet: &mut Packet<'_>,
    ) -> Option<()> {
        let now_ns = packet.meta().stamp_ns;
        let headers = *packet.headers();
        if !headers.flags.has_ports() {
            return None;
        }
        let key = FlowKey::of(&headers, packet.bytes())?;
        let reply = replies.use_flow(&key)?;
        if now_ns.saturating_sub(reply.last_ns) > self.timeout_ns {
            return None;
        }
        reply.last_ns = now_ns;
        let frame = packet.bytes_mut();
        let fields = Fields::find(frame, &headers, Side::Forward)?;
        let old = fields.endpoint(frame)?;
        let mut new = old;
        new.address = reply.address;
        fields.write(frame, &old, &new)
    }
}

fn ip(backend: &Backend) -> IpAddr {
    let [a, b, c, d, ..] = backend.address;
    if backend.is_ipv6 == 0 {
        [a, b, c, d].into()
    } else {
        backend.address.into()
    }
}

impl Stateful for LoadBalancer {
    type State = Affinity;

    #[inline]
    fn process(
        &mut self,
        affinity: &mut Affinity,
        packet: &mut Packet<'_>,
        _emitter: &mut dyn Emitter,
    ) -> Verdict {
        let done = match self.side {
            Side::Forward => self.send(affinity, packet),
            Side::Reply => self.answer(&mut affinity.replies, packet),
        };
        done.into()
    }

    fn read_flows(&self, affinity: &Affinity, page: &mut FlowPage) {
        let totals = FlowTotals {
            begun: affinity.begun,
            evicted: affinity.flows.evictions(),
            outside: 0,
        };
        page.take(&affinity.flows, totals, |key, flow| {
            flow.counts.record(*key)
        });
    }
}
