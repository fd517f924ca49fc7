//! The addresses that a translator gave to first fragments, for the fragments that follow.
//!
//! Only the first fragment has the ports that choose the translation. A later fragment gets the
//! same address if its first fragment came before it, at most 30 s ago. Else the function drops it.

use myelin_packet::fragment_table::FragmentTable;
use myelin_packet::{Fragment, Headers};
use myelin_spec::Side;

use crate::Packet;
use crate::nat::rewrite::{read_address, replace_address};

/// Datagrams that a translator remembers. Same number as in the kernel.
const DATAGRAMS: usize = 4096;

/// The translation of a datagram.
#[derive(Clone, Copy, Debug)]
struct Translation {
    address: [u8; 16],
    /// The new destination MAC address, if the translation has one.
    mac: Option<[u8; 6]>,
}

/// The translations of recent first fragments.
#[derive(Debug)]
pub(crate) struct TranslatedFragments(FragmentTable<Translation>);

impl TranslatedFragments {
    pub(crate) fn new() -> Self {
        let mut table = FragmentTable::default();
        table.reserve(DATAGRAMS);
        Self(table)
    }

    /// Remembers the translation of a first fragment. `packet` has the new address.
    pub(crate) fn remember(
        &mut self,
        fragment: &Fragment,
        packet: &Packet<'_>,
        side: Side,
        mac: Option<[u8; 6]>,
    ) -> Option<()> {
        let address = read_address(packet.bytes(), packet.headers(), side)?;
        let now_ns = packet.meta().stamp_ns;
        let translation = Translation { address, mac };
        self.0.remember(fragment.datagram, translation, now_ns);
        Some(())
    }

    /// Translates a later fragment like its first fragment.
    pub(crate) fn translate_later(
        &mut self,
        fragment: &Fragment,
        packet: &mut Packet<'_>,
        side: Side,
    ) -> Option<()> {
        if fragment.is_first {
            return None;
        }
        let translation = self.0.find(&fragment.datagram, packet.meta().stamp_ns)?;
        let headers: Headers = *packet.headers();
        let frame = packet.bytes_mut();
        replace_address(frame, &headers, side, &translation.address)?;
        if let Some(mac) = translation.mac {
            frame.get_mut(..mac.len())?.copy_from_slice(&mac);
        }
        Some(())
    }
}
