//! Tests requests for links.

use std::time::{Duration, Instant};

use super::*;
use crate::tests::{Namespace, link_name, root_or_skip};

#[test]
fn invalid_names_are_refused_before_the_kernel_gets_them() {
    for bad in [
        "",
        "sixteen-bytes-xx",
        "a/b",
        "a b",
        "a:b",
        ".",
        "..",
        "tab\t",
    ] {
        let error = check_name(bad).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{bad:?}");
        assert!(error.to_string().contains(bad), "{error}");
    }
    check_name("exactly15bytes_").unwrap();
    assert!(
        create_veth(
            &VethEnd::named("my0"),
            &VethEnd::named("too-long-for-a-link")
        )
        .is_err()
    );
}

#[test]
fn a_veth_pair_reaches_into_another_namespace() {
    if !root_or_skip("a_veth_pair_reaches_into_another_namespace") {
        return;
    }
    let (here, there) = (Namespace::new("vetha"), Namespace::new("vethb"));
    let mut netlink = Netlink::open_in(&here).unwrap();
    let name = link_name('v');
    let far = VethEnd {
        name: "eth0",
        namespace: Some(&there),
        mac: Some(Mac([2, 0, 0, 0, 0, 7])),
        mtu: Some(1400),
    };
    netlink
        .apply([create_veth(&VethEnd::named(&name), &far).unwrap()])
        .unwrap();
    let near = netlink.link(&name).unwrap();
    let mut other = Netlink::open_in(&there).unwrap();
    let far = other.link("eth0").unwrap();
    assert_eq!(
        (
            near.kind.as_str(),
            near.mtu,
            near.up,
            near.rx_queues,
            near.tx_queues
        ),
        ("veth", 1500, false, 1, 1)
    );
    assert_eq!((far.mac, far.mtu), (Some(Mac([2, 0, 0, 0, 0, 7])), 1400));
    assert_eq!((near.peer, far.peer), (Some(far.index), Some(near.index)));
    assert!(near.peer_namespace.is_some() && !near.carrier && !near.operational);

    netlink
        .apply([
            set_up(&near.id()),
            set_promiscuous(&near.id(), true),
            set_alias(&near.id(), "text"),
        ])
        .unwrap();
    other
        .apply([
            set_up(&far.id()),
            set_mac(&far.id(), Mac([2, 0, 0, 0, 0, 8])),
        ])
        .unwrap();
    let (near, far) = (
        netlink.link_by_index(near.index).unwrap(),
        other.link("eth0").unwrap(),
    );
    assert!(near.up && near.carrier && near.promiscuous && near.alias.as_deref() == Some("text"));
    let deadline = Instant::now() + Duration::from_secs(60);
    while !netlink.link(&name).unwrap().operational {
        assert!(
            Instant::now() < deadline,
            "the link did not become operational"
        );
    }
    assert_eq!(far.mac, Some(Mac([2, 0, 0, 0, 0, 8])));
    other.apply([set_down(&far.id())]).unwrap();
    assert!(far.up && !other.link("eth0").unwrap().up);

    netlink.apply([delete(&near.id())]).unwrap();
    let error = netlink.link(&name).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("cannot find link `{name}`: the object does not exist; `ip link` lists all links")
    );
    assert!(other.link("eth0").unwrap_err().is_not_found());
}

#[test]
fn a_bridge_gets_ports_and_links_are_listed() {
    if !root_or_skip("a_bridge_gets_ports_and_links_are_listed") {
        return;
    }
    let namespace = Namespace::new("bridge");
    let mut netlink = Netlink::open_in(&namespace).unwrap();
    netlink
        .apply([
            create_bridge("br0").unwrap(),
            create_veth(&VethEnd::named("mya"), &VethEnd::named("myb")).unwrap(),
        ])
        .unwrap();
    let (bridge_link, port) = (netlink.link("br0").unwrap(), netlink.link("mya").unwrap());
    netlink
        .apply([enslave(&port.id(), &bridge_link.id())])
        .unwrap();
    assert_eq!(netlink.link("mya").unwrap().master, Some(bridge_link.index));
    assert_eq!(bridge_link.kind, "bridge");
    let names: Vec<String> = netlink
        .links()
        .unwrap()
        .into_iter()
        .map(|link| link.name)
        .filter(|name| name.starts_with("my"))
        .collect();
    assert_eq!(names.len(), 2);
    assert!(names.contains(&"mya".to_owned()) && names.contains(&"myb".to_owned()));
    let again = netlink
        .apply([create_veth(&VethEnd::named("mya"), &VethEnd::named("myc")).unwrap()])
        .unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Exists);
    assert!(again.to_string().contains("`mya`"), "{again}");
}
