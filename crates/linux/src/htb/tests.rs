//! Tests HTB on links in separate namespaces.

use super::*;
use crate::link::{self, VethEnd};
use crate::qdisc;
use crate::tests::{Namespace, root_or_skip};

/// Makes a veth pair in a new namespace.
fn create_testbed(name: &str) -> (Namespace, Netlink, Link) {
    let namespace = Namespace::new(name);
    let mut netlink = Netlink::open_in(&namespace).unwrap();
    let ends = [VethEnd::named("a"), VethEnd::named("b")];
    netlink
        .apply([link::create_veth(&ends[0], &ends[1]).unwrap()])
        .unwrap();
    for end in ["a", "b"] {
        let id = netlink.link(end).unwrap().id();
        netlink
            .apply([link::disable_ipv6_autoconfiguration(&id), link::set_up(&id)])
            .unwrap();
    }
    let link = netlink.link("a").unwrap();
    (namespace, netlink, link)
}

const CLASS: Class = Class {
    packets: Some(Limit {
        rate: 100,
        burst: 3,
    }),
    bits: None,
    queue: 5,
};

#[test]
fn deleting_the_qdisc_restores_the_default() {
    if !root_or_skip("deleting_the_qdisc_restores_the_default") {
        return;
    }
    let (_namespace, mut netlink, link) = create_testbed("htb");
    let id = link.id();
    assert_eq!(foreign_qdisc(&mut netlink, &id).unwrap(), None);
    netlink.apply([create(&id)]).unwrap();
    assert_eq!(
        own_qdisc(&mut netlink, &id).unwrap().as_deref(),
        Some("htb")
    );
    assert_eq!(foreign_qdisc(&mut netlink, &id).unwrap(), None);
    let both_limits = Class {
        bits: Some(Limit {
            rate: 1_000_000,
            burst: 100_000,
        }),
        ..CLASS
    };
    netlink.apply(add_class(&link, 7, &CLASS).unwrap()).unwrap();
    netlink
        .apply(add_class(&link, 8, &both_limits).unwrap())
        .unwrap();
    let numbers = |netlink: &mut Netlink| {
        let mut all: Vec<u16> = counters(netlink, &id)
            .unwrap()
            .iter()
            .map(|(number, _)| *number)
            .collect();
        all.sort_unstable();
        all
    };
    assert_eq!(numbers(&mut netlink), [7, 8]);
    netlink.apply([delete_class(&id, 7)]).unwrap();
    assert_eq!(numbers(&mut netlink), [8]);
    netlink.apply([delete(&id, "htb")]).unwrap();
    assert_eq!(own_qdisc(&mut netlink, &id).unwrap(), None);
}

#[test]
fn a_qdisc_of_another_program_is_detected() {
    if !root_or_skip("a_qdisc_of_another_program_is_detected") {
        return;
    }
    let (_namespace, mut netlink, link) = create_testbed("tbf");
    let limit = Limit {
        rate: 8_000_000,
        burst: 80_000,
    };
    let tbf = qdisc::add_root_qdisc(&link.id(), "tbf", token_bucket(limit));
    netlink.apply([tbf]).unwrap();
    let found = foreign_qdisc(&mut netlink, &link.id()).unwrap();
    assert_eq!(found.as_deref(), Some("tbf"));
    let error = netlink.apply([create(&link.id())]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exists);
}

/// Compares the fields that the kernel reads (linux/pkt_sched.h).
#[test]
fn the_bucket_is_one_packet_smaller_and_all_frames_count_the_same() {
    let options = class_options(&CLASS, 1518);
    let word = |at: usize| u32::from_ne_bytes(options[at..at + 4].try_into().unwrap());
    let half = |at: usize| u16::from_ne_bytes(options[at..at + 2].try_into().unwrap());
    // After the attribute's header: minimum packet and rate, twice; then the buffers.
    for spec in [4, 16] {
        assert_eq!((half(spec + 6), word(spec + 8)), (1518, 151_800));
    }
    // Two packets of 10 ms each.
    assert_eq!((word(28), word(32)), (312_500, 312_500));
}

#[test]
fn kernels_without_mpu_are_detected() {
    for (release, expected) in [
        ("6.18.44-fc-v769", true),
        ("5.17.0", true),
        ("5.15.0-91-generic", false),
        ("4.19", false),
        ("", false),
    ] {
        assert_eq!(supports_packet_limits(release), expected, "{release}");
    }
}
