//! Random endpoints of a flow.

use std::net::SocketAddr;

use proptest::prelude::*;

/// Generates source and destination of the same family.
pub(crate) fn endpoints() -> impl Strategy<Value = (SocketAddr, SocketAddr)> {
    let endpoint = |v6: bool| {
        any::<([u8; 16], u16)>().prop_map(move |(a, port)| {
            if v6 {
                SocketAddr::from((a, port))
            } else {
                SocketAddr::from(([a[0], a[1], a[2], a[3]], port))
            }
        })
    };
    prop_oneof![
        (endpoint(false), endpoint(false)),
        (endpoint(true), endpoint(true))
    ]
}
