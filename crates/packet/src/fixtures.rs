//! Named frames with what the parser must say of them.
//!
//! Every parser of the project, in Rust and in eBPF, is tested on this one list. The expected
//! values are written out by hand, never computed by the parser under test. [`build`] has the
//! builders, for tests that want frames of their own.

pub mod build;
mod malformed;
mod transport;
mod well_formed;

use crate::five_tuple::FiveTuple;
use crate::parse::{Flags, Headers, Unparsed};

/// One frame.
#[derive(Clone, Debug)]
pub struct Fixture {
    /// What is special about it, in words joined by dashes; unique.
    pub name: &'static str,
    /// From the Ethernet header to the last byte, without the frame check sequence.
    pub frame: Vec<u8>,
    /// What the parser must say.
    pub expected: Result<Headers, Unparsed>,
}

impl Fixture {
    /// The five-tuple of a frame that parses: the builders' addresses and, where there are
    /// ports, the builders' ports.
    pub fn five_tuple(&self) -> Option<FiveTuple> {
        let headers = self.expected.ok()?;
        let (client, server) = if headers.flags.is_ipv6() {
            (build::client_v6(), build::server_v6())
        } else {
            (build::client_v4(), build::server_v4())
        };
        let ports = headers.flags.has_ports();
        Some(FiveTuple {
            source: client.ip(),
            destination: server.ip(),
            protocol: headers.protocol,
            source_port: ports.then_some(client.port()),
            destination_port: ports.then_some(server.port()),
        })
    }
}

/// The names of the fixtures whose UDP checksum is wrong: one by chance, one as a sender leaves it
/// for its card to complete (`CHECKSUM_PARTIAL`).
pub const WRONG_CHECKSUM: [&str; 2] = ["udp-v4-checksum-wrong", "udp-v4-checksum-partial"];

/// Every fixture: first those that parse, then those that do not.
pub fn all() -> Vec<Fixture> {
    [transport::all(), well_formed::all(), malformed::all()].concat()
}

/// The fixture of that name.
///
/// # Panics
/// When there is none.
pub fn named(name: &str) -> Fixture {
    all()
        .into_iter()
        .find(|fixture| fixture.name == name)
        .unwrap_or_else(|| panic!("no fixture is named `{name}`"))
}

const V4: Flags = Flags::from_bits(0);
const V6: Flags = Flags::IPV6;
const PORTS: Flags = Flags::PORTS;
const FRAGMENT: Flags = Flags::FRAGMENT;

/// `places` are l3, l4, payload and end.
fn parsed(
    name: &'static str,
    frame: Vec<u8>,
    places: [u16; 4],
    flags: Flags,
    protocol: u8,
) -> Fixture {
    let [l3, l4, payload, end] = places;
    Fixture {
        name,
        frame,
        expected: Ok(Headers {
            l3,
            l4,
            payload,
            end,
            flags,
            protocol,
        }),
    }
}

fn unparsed(name: &'static str, frame: Vec<u8>, reason: Unparsed) -> Fixture {
    Fixture {
        name,
        frame,
        expected: Err(reason),
    }
}
