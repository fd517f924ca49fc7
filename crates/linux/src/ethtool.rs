//! Offloads and receive queues of a link (`SIOCETHTOOL`, linux/ethtool.h).
//!
//! Offloads leave work to the network card, which computes checksums and cuts large segments. A
//! virtual link does not do this work, so a packet function would see unfinished packets. This
//! module turns offloads off.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use crate::error::{Error, ErrorKind, Result};
use crate::link::{self, LinkId, check_name};
use crate::netlink::Netlink;
use crate::sysctl;

const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_GFEATURES: u32 = 0x3a;
const ETHTOOL_SFEATURES: u32 = 0x3b;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const ETHTOOL_GLINKSETTINGS: u32 = 0x4c;
const ETH_SS_FEATURES: u32 = 4;
/// `ETH_GSTRING_LEN`.
const STRING_BYTES: usize = 32;
const WORD_BYTES: usize = size_of::<u32>();
/// Length of struct `ethtool_link_settings`, words.
const SETTINGS_WORDS: usize = 12;
/// Largest number of features that this module reads. Devices have fewer features.
const MAX_FEATURES: usize = 1 << 12;

/// A group of related features of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Offload {
    /// The sender leaves the transport checksum to the card.
    TransmitChecksum,
    /// The card checks the checksum for the receiver.
    ReceiveChecksum,
    /// The sender passes a packet in several memory segments.
    ScatterGather,
    /// The sender leaves segmentation to the card: TCP (TSO), UDP (USO), SCTP, tunnels, GSO lists.
    Segmentation,
    /// [`Self::Segmentation`] without TCP.
    OtherSegmentation,
    /// The kernel segments just before the driver (GSO).
    GenericSegmentation,
    /// The kernel merges received packets (GRO). On a veth this also turns NAPI on, which an XDP
    /// redirect to the veth's peer needs.
    GenericReceive,
    /// The sender leaves a VLAN tag for the card to put into the frame.
    TransmitVlan,
}

/// Offloads with which a sender leaves a packet unfinished.
const TRANSMIT: [Offload; 5] = [
    Offload::TransmitChecksum,
    Offload::ScatterGather,
    Offload::Segmentation,
    Offload::GenericSegmentation,
    Offload::TransmitVlan,
];

impl Offload {
    /// Returns whether the group contains the feature with this kernel name (`ethtool -k`).
    fn contains(self, feature: &str) -> bool {
        match self {
            Self::TransmitChecksum => feature.starts_with("tx-checksum-"),
            Self::ReceiveChecksum => feature == "rx-checksum",
            Self::ScatterGather => feature.starts_with("tx-scatter-gather"),
            // tx-tcp-segmentation, tx-udp-segmentation, tx-gre-csum-segmentation and a dozen more.
            Self::Segmentation => {
                feature == "tx-gso-list"
                    || feature.starts_with("tx-")
                        && feature.ends_with("segmentation")
                        && feature != "tx-generic-segmentation"
            }
            Self::OtherSegmentation => {
                Self::Segmentation.contains(feature) && !feature.starts_with("tx-tcp")
            }
            Self::GenericSegmentation => feature == "tx-generic-segmentation",
            Self::GenericReceive => feature == "rx-gro",
            // tx-vlan-hw-insert and tx-vlan-stag-hw-insert.
            Self::TransmitVlan => {
                feature.starts_with("tx-vlan-") && feature.ends_with("-hw-insert")
            }
        }
    }
}

/// State of one feature of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Feature {
    /// Whether the feature is in effect.
    pub active: bool,
    /// Whether the feature can be changed.
    pub changeable: bool,
}

/// Sets a link of the calling thread's namespace up without offloads and IPv6. So the kernel sends
/// no packets over the link on its own.
pub fn set_up_without_offloads(netlink: &mut Netlink, link: &LinkId) -> Result<()> {
    Ethtool::open()?.disable_offloads(&link.name)?;
    set_up_without_ipv6(netlink, link)
}

/// Sets a link up like [`set_up_without_offloads`], but with the offloads of checksums and of TCP
/// segmentation, so that TCP packets cross the link as super-packets.
pub fn set_up_for_super_packets(netlink: &mut Netlink, link: &LinkId) -> Result<()> {
    let offloads = [Offload::OtherSegmentation, Offload::GenericReceive];
    Ethtool::open()?.set(&link.name, &offloads, false)?;
    set_up_without_ipv6(netlink, link)
}

fn set_up_without_ipv6(netlink: &mut Netlink, link: &LinkId) -> Result<()> {
    let mut requests = Vec::with_capacity(2);
    if sysctl::has_ipv6(&link.name) {
        sysctl::disable_ipv6(&link.name, true)?;
        requests.push(link::disable_ipv6_autoconfiguration(link));
    }
    requests.push(link::set_up(link));
    netlink.apply(requests)
}

/// A handle for the links of the namespace in which the handle was opened.
#[derive(Debug)]
pub struct Ethtool {
    socket: OwnedFd,
}

impl Ethtool {
    /// Opens a handle in the calling thread's namespace.
    pub fn open() -> Result<Self> {
        let socket = socket(
            AddressFamily::Inet,
            SockType::Datagram,
            SockFlag::SOCK_CLOEXEC,
            None,
        )
        .map_err(|errno| Error::os("open a socket for ethtool requests", errno))?;
        Ok(Self { socket })
    }

    /// Returns all features of the link, by the kernel's names (`ethtool -k`).
    pub fn features(&self, link: &str) -> Result<BTreeMap<String, Feature>> {
        let action = format!("read the offloads of link `{link}`");
        let names = self.names(link, &action)?;
        // Four words for each 32 features: available, requested, active, never changed.
        let blocks = names.len().div_ceil(32);
        let mut buffer = vec![0; 2 + 4 * blocks];
        buffer[0] = ETHTOOL_GFEATURES;
        buffer[1] = blocks as u32;
        self.request(link, &action, &mut buffer)?;
        let bit = |word: usize, feature: usize| {
            buffer
                .get(2 + 4 * (feature / 32) + word)
                .is_some_and(|bits| bits >> (feature % 32) & 1 == 1)
        };
        let names = names.iter().enumerate();
        Ok(names
            .filter(|(_, name)| !name.is_empty())
            .map(|(feature, name)| {
                let state = Feature {
                    active: bit(2, feature),
                    changeable: bit(0, feature) && !bit(3, feature),
                };
                (name.clone(), state)
            })
            .collect())
    }

    /// Turns offloads on or off in one request. Ignores features that the link lacks.
    ///
    /// # Errors
    /// The driver does not allow a feature to be turned off.
    pub fn set(&self, link: &str, offloads: &[Offload], on: bool) -> Result<()> {
        let is_selected = |name: &str| offloads.iter().any(|offload| offload.contains(name));
        let mut changed = self.features(link)?;
        changed.retain(|name, feature| feature.changeable && is_selected(name));
        self.write(link, |name| changed.contains_key(name), on)?;
        let after = self.features(link)?;
        let mut active = after.iter().filter(|(_, feature)| feature.active);
        match active.find(|(name, _)| !on && is_selected(name)) {
            None => Ok(()),
            Some((name, _)) => Err(Error::new(
                format!("turn `{name}` of link `{link}` off"),
                ErrorKind::Unsupported,
                "the driver keeps the feature on",
            )
            .remedy("use a link whose driver can turn the feature off")),
        }
    }

    /// Turns the offloads that leave a packet unfinished on or off. Without these, the link sends
    /// packets of wire size with whole checksums.
    pub fn set_transmit_offloads(&self, link: &str, on: bool) -> Result<()> {
        self.set(link, &TRANSMIT, on)
    }

    /// Turns off the offloads that leave a packet unfinished or merge several packets into one
    /// packet. So functions see packets as they are on the wire.
    ///
    /// One request for all: each request waits for all other changes of links on the machine.
    pub fn disable_offloads(&self, link: &str) -> Result<()> {
        let all = [&TRANSMIT[..], &[Offload::GenericReceive]].concat();
        self.set(link, &all, false)
    }

    /// Returns the number of receive queues; `None` if the driver does not report the number.
    pub fn receive_queues(&self, link: &str) -> Result<Option<u32>> {
        // struct ethtool_channels: the command, four maxima, then the four numbers in use.
        let mut buffer = [0; 9];
        buffer[0] = ETHTOOL_GCHANNELS;
        let action = format!("read the channels of link `{link}`");
        match self.request(link, &action, &mut buffer) {
            Err(error) if error.kind() == ErrorKind::Unsupported => Ok(None),
            Err(error) => Err(error),
            Ok(()) => {
                let [.., receive, _, _, combined] = buffer;
                Ok(Some((combined + receive).max(1)))
            }
        }
    }

    /// Returns the speed of the link, Mbit/s; `None` if the driver does not report the speed.
    pub fn speed_mbit(&self, link: &str) -> Result<Option<u32>> {
        let action = format!("read the speed of link `{link}`");
        // struct ethtool_link_settings: the command, the speed, seven bytes, and the length of the
        // three bit masks that follow the struct. The kernel answers a wrong length with the right
        // one, as a negative number.
        let mut header = [0; SETTINGS_WORDS];
        header[0] = ETHTOOL_GLINKSETTINGS;
        match self.request(link, &action, &mut header) {
            Err(error) if error.kind() == ErrorKind::Unsupported => return Ok(None),
            outcome => outcome?,
        }
        let [.., masks] = header[3].to_ne_bytes();
        let masks = masks.cast_signed().unsigned_abs();
        let mut buffer = vec![0; SETTINGS_WORDS + 3 * usize::from(masks)];
        buffer[0] = ETHTOOL_GLINKSETTINGS;
        buffer[3] = u32::from_ne_bytes([0, 0, 0, masks]);
        self.request(link, &action, &mut buffer)?;
        // `SPEED_UNKNOWN` is -1.
        Ok(Some(buffer[1]).filter(|speed| (1..=i32::MAX.unsigned_abs()).contains(speed)))
    }

    fn write(&self, link: &str, is_changed: impl Fn(&str) -> bool, on: bool) -> Result<()> {
        let action = format!("change the offloads of link `{link}`");
        let names = self.names(link, &action)?;
        // Two words for each 32 features: a mask of the features to change, and their new values.
        let blocks = names.len().div_ceil(32);
        let mut buffer = vec![0; 2 + 2 * blocks];
        buffer[0] = ETHTOOL_SFEATURES;
        buffer[1] = blocks as u32;
        for (feature, name) in names.iter().enumerate() {
            if is_changed(name) {
                let block = 2 + 2 * (feature / 32);
                buffer[block] |= 1 << (feature % 32);
                buffer[block + 1] |= u32::from(on) << (feature % 32);
            }
        }
        self.request(link, &action, &mut buffer)
    }

    /// Returns the names of the features, which are the same for all links of a kernel.
    fn names(&self, link: &str, action: &str) -> Result<&'static [String]> {
        static NAMES: OnceLock<Vec<String>> = OnceLock::new();
        if let Some(names) = NAMES.get() {
            return Ok(names);
        }
        let names = self.read_names(link, action)?;
        Ok(NAMES.get_or_init(|| names))
    }

    fn read_names(&self, link: &str, action: &str) -> Result<Vec<String>> {
        // struct ethtool_sset_info: command, reserved, 64-bit mask of string sets, then the length
        // of each set.
        let mut buffer = [ETHTOOL_GSSET_INFO, 0, 0, 0, 0];
        let mask = (1_u64 << ETH_SS_FEATURES).to_ne_bytes();
        let (low, high) = mask.split_at(WORD_BYTES);
        buffer[2] = u32::from_ne_bytes(low.try_into().unwrap_or_default());
        buffer[3] = u32::from_ne_bytes(high.try_into().unwrap_or_default());
        self.request(link, action, &mut buffer)?;
        let count = (buffer[4] as usize).min(MAX_FEATURES);
        let mut buffer = vec![0; 3 + count * STRING_BYTES / WORD_BYTES];
        buffer[0] = ETHTOOL_GSTRINGS;
        buffer[1] = ETH_SS_FEATURES;
        buffer[2] = count as u32;
        self.request(link, action, &mut buffer)?;
        let names = buffer[3..].chunks(STRING_BYTES / WORD_BYTES);
        Ok(names.map(decode_string).collect())
    }

    fn request(&self, link: &str, action: &str, buffer: &mut [u32]) -> Result<()> {
        check_name(link)?;
        // SAFETY: all-zero bytes are a valid `ifreq`, which consists of integers and a union of
        // plain data.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(link.bytes()) {
            *to = libc::c_char::from_ne_bytes([from]);
        }
        request.ifr_ifru.ifru_data = buffer.as_mut_ptr().cast();
        // SAFETY: the name is zero-terminated, because `check_name` limits the name's length.
        // `buffer` is borrowed exclusively for the call, and is as long as its header words say.
        let result = unsafe {
            libc::ioctl(
                self.socket.as_raw_fd(),
                libc::SIOCETHTOOL as _,
                &raw mut request,
            )
        };
        Errno::result(result)
            .map(drop)
            .map_err(|errno| Error::os(action, errno))
    }
}

/// Converts a zero-padded string from native words.
fn decode_string(words: &[u32]) -> String {
    let bytes = words
        .iter()
        .flat_map(|word| word.to_ne_bytes())
        .take_while(|byte| *byte != 0)
        .collect::<Vec<u8>>();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::VethEnd;
    use crate::tests::{Namespace, root_or_skip, stdout_of};

    const ALL: [Offload; 7] = [
        Offload::TransmitChecksum,
        Offload::ReceiveChecksum,
        Offload::ScatterGather,
        Offload::Segmentation,
        Offload::GenericSegmentation,
        Offload::GenericReceive,
        Offload::TransmitVlan,
    ];

    /// Creates a veth pair in the namespace. Returns a handle for the namespace.
    fn create_veth_in(namespace: &Namespace) -> Ethtool {
        let mut netlink = Netlink::open_in(namespace).unwrap();
        netlink
            .apply([link::create_veth(&VethEnd::named("mya"), &VethEnd::named("myb")).unwrap()])
            .unwrap();
        namespace.enter(Ethtool::open).unwrap().unwrap()
    }

    #[test]
    fn offloads_of_a_veth_turn_off_and_on() {
        if !root_or_skip("offloads_of_a_veth_turn_off_and_on") {
            return;
        }
        let namespace = Namespace::new("ethtool");
        let ethtool = create_veth_in(&namespace);
        assert_eq!(ethtool.receive_queues("mya").unwrap(), Some(1));
        let before = ethtool.features("mya").unwrap();
        assert!(
            before["tx-generic-segmentation"].active && before["tx-checksum-ip-generic"].changeable
        );

        let off = [
            Offload::TransmitChecksum,
            Offload::ScatterGather,
            Offload::Segmentation,
            Offload::GenericSegmentation,
        ];
        ethtool.set("mya", &off, false).unwrap();
        // `ethtool -k` must agree for every feature that makes large or unfinished packets.
        let shown = stdout_of(
            "ip",
            &[
                "netns",
                "exec",
                namespace.name().unwrap(),
                "ethtool",
                "-k",
                "mya",
            ],
        );
        let on: Vec<&str> = shown
            .lines()
            .map(str::trim)
            .filter(|line| {
                line.contains(": on")
                    && (line.contains("segmentation")
                        || line.contains("tx-checksum")
                        || line.contains("scatter"))
            })
            .collect();
        assert!(on.is_empty(), "{on:?}");

        for on in [true, false] {
            ethtool.set("mya", &[Offload::GenericReceive], on).unwrap();
            assert_eq!(ethtool.features("mya").unwrap()["rx-gro"].active, on);
        }
    }

    #[test]
    fn the_speed_is_that_of_the_handles_namespace() {
        if !root_or_skip("the_speed_is_that_of_the_handles_namespace") {
            return;
        }
        let namespace = Namespace::new("ethtool3");
        let ethtool = create_veth_in(&namespace);
        let name = namespace.name().unwrap();
        stdout_of("ip", &["-n", name, "link", "set", "mya", "up"]);
        let shown = ["netns", "exec", name, "cat", "/sys/class/net/mya/speed"];
        let shown: u32 = stdout_of("ip", &shown).trim().parse().unwrap();
        assert_eq!(ethtool.speed_mbit("mya").unwrap(), Some(shown));
        assert_eq!(ethtool.speed_mbit("lo").unwrap(), None);
        assert!(ethtool.speed_mbit("absent").unwrap_err().is_not_found());
    }

    #[test]
    fn errors_name_fixed_features_and_missing_links() {
        if !root_or_skip("errors_name_fixed_features_and_missing_links") {
            return;
        }
        let namespace = Namespace::new("ethtool2");
        let ethtool = create_veth_in(&namespace);
        // The loopback link's checksum offloads are fixed.
        let error = ethtool
            .set("lo", &[Offload::TransmitChecksum], false)
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(
            error.to_string().contains("tx-checksum") && error.to_string().contains("`lo`"),
            "{error}"
        );
        let error = ethtool.features("absent").unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot read the offloads of link `absent`: the object does not exist"
        );
        assert_eq!(
            ethtool.features("sixteen-bytes-xx").unwrap_err().kind(),
            ErrorKind::Invalid
        );
    }

    #[test]
    fn each_feature_is_in_at_most_one_group() {
        for (name, groups) in [
            ("tx-checksum-ipv4", 1),
            ("tx-tcp6-segmentation", 1),
            ("tx-generic-segmentation", 1),
            ("tx-gso-list", 1),
            ("rx-gro", 1),
            ("rx-checksum", 1),
            ("tx-vlan-stag-hw-insert", 1),
            // These features select how GRO merges, and have no effect without GRO.
            ("rx-gro-list", 0),
            ("rx-udp-gro-forwarding", 0),
        ] {
            let count = ALL.iter().filter(|offload| offload.contains(name)).count();
            assert_eq!(count, groups, "{name}");
        }
    }
}
