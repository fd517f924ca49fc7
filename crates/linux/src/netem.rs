//! Network emulation (netem, tc-netem(8)) as the root qdisc of an interface: delay, jitter, rate
//! and loss of the packets that the interface sends.
//!
//! netem counts a super-packet as one packet. With jitter and without a rate, packets may overtake
//! each other.

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::TcHandle;

use crate::link::LinkId;
use crate::netlink::Request;
use crate::qdisc::{TICK_NS, build_message, encode_attribute, to_native_bytes};

/// Major number of the qdisc: "mn" in ASCII.
const HANDLE: TcHandle = TcHandle {
    major: 0x6d6e,
    minor: 0,
};
const MILLION: u64 = 1_000_000;

// Attributes of linux/pkt_sched.h: TCA_NETEM_LOSS with NETEM_LOSS_GE, TCA_NETEM_RATE,
// TCA_NETEM_RATE64, TCA_NETEM_LATENCY64, TCA_NETEM_JITTER64.
const LOSS: u16 = 5;
const GILBERT_ELLIOTT: u16 = 2;
const RATE: u16 = 6;
const RATE64: u16 = 8;
const LATENCY64: u16 = 10;
const JITTER64: u16 = 11;
const NESTED: u16 = 1 << 15;

/// What the qdisc does to packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Netem {
    /// Delay, ns.
    pub delay_ns: u64,
    /// Largest deviation from the delay, ns; uniform.
    pub jitter_ns: u64,
    /// Rate, bits a second; `None`: not limited. Frames count with the Ethernet header.
    pub rate_bps: Option<u64>,
    /// Packets that wait at most, for the rate and for the delay together.
    pub limit: u32,
    /// The share of lost packets, millionths.
    pub loss_ppm: u32,
    /// Mean number of packets that are lost in a row (Gilbert's model); 0 or 1: packets are lost
    /// independently.
    pub loss_burst: u32,
}

/// Sets the root qdisc of a link, or changes it.
pub fn set(link: &LinkId, netem: &Netem) -> Request {
    let options = Some(encode(netem));
    let message = build_message(link, "netem", HANDLE, TcHandle::ROOT, options);
    let action = format!("set qdisc netem of link `{}`", link.name);
    Request::replace(action, RouteNetlinkMessage::NewQueueDiscipline(message))
}

/// Encodes struct `tc_netem_qopt` (latency in ticks, limit, loss, gap, duplicate, jitter in ticks)
/// and the attributes behind it. The attributes in ns replace the ticks.
fn encode(netem: &Netem) -> Vec<u8> {
    let is_in_bursts = netem.loss_burst > 1 && netem.loss_ppm > 0;
    let independent = if is_in_bursts {
        0
    } else {
        probability(u64::from(netem.loss_ppm), MILLION)
    };
    let ticks = |ns: u64| u32::try_from(ns / u64::from(TICK_NS)).unwrap_or(u32::MAX);
    let mut options = to_native_bytes(&[
        ticks(netem.delay_ns),
        netem.limit,
        independent,
        0,
        0,
        ticks(netem.jitter_ns),
    ]);
    for (kind, ns) in [(LATENCY64, netem.delay_ns), (JITTER64, netem.jitter_ns)] {
        options.extend(encode_attribute(kind, ns.to_ne_bytes().to_vec()));
    }
    // A change without the attribute keeps the earlier rate. 0: not limited.
    let bytes = netem.rate_bps.map_or(0, |rate_bps| (rate_bps / 8).max(1));
    // struct tc_netem_rate: rate, packet overhead, cell size, cell overhead.
    let rate = to_native_bytes(&[u32::try_from(bytes).unwrap_or(u32::MAX), 0, 0, 0]);
    options.extend(encode_attribute(RATE, rate));
    if bytes > u32::MAX.into() {
        options.extend(encode_attribute(RATE64, bytes.to_ne_bytes().to_vec()));
    }
    if is_in_bursts {
        // struct tc_netem_gemodel: good to bad, bad to good, no loss in bad, loss in good.
        let (ppm, burst) = (u64::from(netem.loss_ppm), u64::from(netem.loss_burst));
        let passed_ppm = MILLION.saturating_sub(ppm).max(1);
        let model = to_native_bytes(&[
            probability(ppm, burst.saturating_mul(passed_ppm)),
            probability(1, burst),
            0,
            0,
        ]);
        let model = encode_attribute(GILBERT_ELLIOTT, model);
        options.extend(encode_attribute(LOSS | NESTED, model));
    }
    options
}

/// A probability as the kernel has it: 2^32 - 1 is certain.
fn probability(part: u64, whole: u64) -> u32 {
    let scaled = u128::from(part) * u128::from(u32::MAX) / u128::from(whole.max(1));
    u32::try_from(scaled).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use netlink_packet_core::{DefaultNla, Nla, NlasIterator, Parseable};

    use super::*;
    use crate::feature::{Feature, ProbeResult, probe};
    use crate::link::{VethEnd, create_veth};
    use crate::netlink::Netlink;
    use crate::tests::{Namespace, root_or_skip};

    const LINK: Netem = Netem {
        delay_ns: 10_000_000,
        jitter_ns: 1_000_000,
        rate_bps: Some(8_000_000),
        limit: 77,
        loss_ppm: 10_000,
        loss_burst: 1,
    };

    /// The words of the structure, and the attributes behind it.
    fn decode(options: &[u8]) -> (Vec<u32>, Vec<(u16, Vec<u8>)>) {
        let (structure, attributes) = options.split_at(24);
        let word = |bytes: &[u8]| u32::from_ne_bytes(bytes.try_into().unwrap());
        let attributes = NlasIterator::new(attributes).map(|attribute| {
            let attribute = DefaultNla::parse(&attribute.unwrap()).unwrap();
            let mut value = vec![0; attribute.value_len()];
            attribute.emit_value(&mut value);
            (attribute.kind(), value)
        });
        (
            structure.chunks(4).map(word).collect(),
            attributes.collect(),
        )
    }

    fn words(value: &[u8]) -> Vec<u32> {
        let word = |bytes: &[u8]| u32::from_ne_bytes(bytes.try_into().unwrap());
        value.chunks(4).map(word).collect()
    }

    #[test]
    fn the_message_has_the_values_of_the_link() {
        let (structure, attributes) = decode(&encode(&LINK));
        let percent = (u64::from(u32::MAX) / 100) as u32;
        assert_eq!(structure, [156_250, 77, percent, 0, 0, 15_625]);
        let value = |kind: u16| {
            let mut all = attributes.iter();
            all.find(|(other, _)| *other & !NESTED == kind)
                .map(|(_, value)| value.clone())
        };
        assert_eq!(value(LATENCY64).unwrap(), 10_000_000_u64.to_ne_bytes());
        assert_eq!(value(JITTER64).unwrap(), 1_000_000_u64.to_ne_bytes());
        assert_eq!(words(&value(RATE).unwrap()), [1_000_000, 0, 0, 0]);
        assert_eq!((value(RATE64), value(LOSS)), (None, None));
        let unlimited = Netem {
            rate_bps: None,
            ..LINK
        };
        let (_, attributes) = decode(&encode(&unlimited));
        let rate = attributes.iter().find(|(kind, _)| *kind == RATE).unwrap();
        assert_eq!(words(&rate.1), [0; 4], "a change removes the rate");
    }

    #[test]
    fn fast_rates_and_bursts_of_loss_have_their_attributes() {
        let netem = Netem {
            rate_bps: Some(80_000_000_000),
            loss_ppm: 200_000,
            loss_burst: 4,
            ..LINK
        };
        let (structure, attributes) = decode(&encode(&netem));
        assert_eq!(structure[2], 0, "the loss is in the model");
        let value = |kind: u16| {
            let mut all = attributes.iter();
            all.find(|(other, _)| *other & !NESTED == kind)
                .unwrap()
                .1
                .clone()
        };
        assert_eq!(value(RATE64), 10_000_000_000_u64.to_ne_bytes());
        assert_eq!(words(&value(RATE))[0], u32::MAX);
        let (_, model) = decode(&[&[0; 24][..], &value(LOSS)].concat());
        assert_eq!(model[0].0, GILBERT_ELLIOTT);
        // A fifth of the packets is lost, four in a row: 1/16 of the good ones begin a burst.
        assert_eq!(words(&model[0].1), [u32::MAX / 16, u32::MAX / 4, 0, 0]);
        assert_eq!(probability(3, 0), u32::MAX);
        let all = Netem {
            loss_ppm: 1_000_000,
            ..LINK
        };
        assert_eq!(decode(&encode(&all)).0[2], u32::MAX);
    }

    /// Where the kernel has netem, `tc` shows what the message set. Elsewhere, the kernel refuses
    /// the message as an unknown qdisc.
    #[test]
    fn the_kernel_takes_the_message_or_lacks_netem() {
        if !root_or_skip("the_kernel_takes_the_message_or_lacks_netem") {
            return;
        }
        let namespace = Namespace::new("netem");
        let mut netlink = Netlink::open_in(&namespace).unwrap();
        let ends = [VethEnd::named("one"), VethEnd::named("other")];
        netlink
            .apply([create_veth(&ends[0], &ends[1]).unwrap()])
            .unwrap();
        let link = netlink.link("one").unwrap().id();
        let answer = netlink.apply([set(&link, &LINK)]);
        if probe(Feature::Netem) != ProbeResult::Yes {
            let error = answer.unwrap_err();
            println!("this kernel lacks netem: {error}");
            assert!(error.is_not_found(), "{error}");
            return;
        }
        answer.unwrap();
        let show = || {
            let name = namespace.name().unwrap();
            let command = ["-n", name, "qdisc", "show", "dev", "one"];
            let output = Command::new("tc").args(command).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        let text = show();
        for words in [
            "netem",
            "limit 77",
            "delay 10ms",
            "1ms",
            "loss 1%",
            "rate 8Mbit",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        let changed = Netem {
            delay_ns: 20_000_000,
            loss_burst: 4,
            ..LINK
        };
        netlink.apply([set(&link, &changed)]).unwrap();
        let text = show();
        assert!(
            text.contains("delay 20ms") && text.contains("gemodel"),
            "{text}"
        );
    }
}
