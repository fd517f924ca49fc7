//! A plain model: looks for the quoted packet among the packets of one flow, and replaces one field
//! after the other. Each checksum changes word by word (RFC 1624).

use std::net::IpAddr;

use myelin_packet::five_tuple::{ICMP, TCP, UDP};
use myelin_packet::{Headers, IcmpQuote, checksum, parse};

use super::{Flow, MAC, Translator, addresses, tuple};

/// One side of a function, for errors about one packet of a flow.
pub(super) struct Model<'a> {
    pub(super) flow: Flow,
    /// The packet as errors quote it.
    pub(super) quoted: &'a [u8],
    /// The packet as its sender knows it.
    pub(super) sent: &'a [u8],
    pub(super) is_reply: bool,
}

/// A checksum: its offset, and the protocol that says which zero it has.
type Checksum = (usize, u8);

impl Model<'_> {
    /// Returns the error that the function must forward.
    pub(super) fn translate(&self, error: &[u8]) -> Option<Vec<u8>> {
        let headers = parse(error).ok()?;
        let quote = IcmpQuote::find(error, &headers)?;
        self.is_known(error, &quote)
            .then(|| self.rewrite(error, &headers, &quote))
    }

    /// Returns whether the quoted source changes; otherwise the quoted destination changes.
    fn changes_source(&self) -> bool {
        self.is_reply == (self.flow.translator == Translator::Nat)
    }

    /// Returns the address that changes in a packet of the flow.
    fn address(&self, frame: &[u8]) -> IpAddr {
        let (source, destination) = addresses(frame);
        if self.changes_source() {
            source
        } else {
            destination
        }
    }

    /// Returns the offset of the port, or of the echo's identifier, behind the IP header.
    fn port_offset(&self) -> usize {
        match (self.flow.protocol, self.changes_source()) {
            (ICMP, _) => 4,
            (_, true) => 0,
            (_, false) => 2,
        }
    }

    fn port<'a>(&self, frame: &'a [u8], l4: usize) -> &'a [u8] {
        let at = l4 + self.port_offset();
        &frame[at..at + 2]
    }

    fn is_known(&self, error: &[u8], quote: &IcmpQuote) -> bool {
        let Some(found) = quote.five_tuple(error) else {
            return false;
        };
        let known = tuple(self.quoted);
        let l4 = l4_of(self.quoted);
        if self.flow.translator == Translator::LoadBalancer {
            return found == known;
        }
        // The nat's mappings are endpoint-independent.
        let end = if self.changes_source() {
            found.source
        } else {
            found.destination
        };
        let is_same_type = self.flow.protocol != ICMP || error[quote.l4] == self.quoted[l4];
        is_same_type
            && end == self.address(self.quoted)
            && found.protocol == known.protocol
            && self.port(error, quote.l4) == self.port(self.quoted, l4)
    }

    fn rewrite(&self, error: &[u8], headers: &Headers, quote: &IcmpQuote) -> Vec<u8> {
        let v6 = self.flow.v6;
        let (l3, message) = (usize::from(headers.l3), (usize::from(headers.l4) + 2, ICMP));
        let new = octets(self.address(self.sent));
        let outer = match (v6, self.changes_source()) {
            (false, false) => 12,
            (false, true) => 16,
            (true, false) => 8,
            (true, true) => 24,
        };
        let header = if v6 { message } else { (l3 + 10, ICMP) };
        let mut frame = error.to_vec();
        replace(&mut frame, l3 + outer, &new, &[header]);
        self.replace_quoted(&mut frame, quote, &new, &|_| vec![message]);
        // The quoted checksums change by the same words, and the ICMP checksum by theirs.
        let mut shadow = error.to_vec();
        let quoted_checksums = |is_address: bool| -> Vec<Checksum> {
            let header = (quote.l3 + 10, ICMP);
            let header = (is_address && !v6).then_some(header);
            let covers_addresses = self.flow.protocol != ICMP || v6;
            let transport = self
                .quoted_checksum(error, quote)
                .filter(|_| !is_address || covers_addresses);
            header.into_iter().chain(transport).collect()
        };
        self.replace_quoted(&mut shadow, quote, &new, &quoted_checksums);
        let mut all = quoted_checksums(true);
        all.extend(quoted_checksums(false));
        for (at, _) in all {
            let value = [shadow[at], shadow[at + 1]];
            replace(&mut frame, at, &value, &[message]);
        }
        if self.flow.translator == Translator::LoadBalancer && !self.is_reply && !v6 {
            frame[..6].copy_from_slice(&MAC.0);
        }
        frame
    }

    /// Replaces the quoted address and port, and updates the checksums that `checksums` returns for
    /// an address (true) and for a port (false).
    fn replace_quoted(
        &self,
        frame: &mut [u8],
        quote: &IcmpQuote,
        new: &[u8],
        checksums: &dyn Fn(bool) -> Vec<Checksum>,
    ) {
        let address = if self.changes_source() {
            quote.source()
        } else {
            quote.destination()
        };
        let port = self.port(self.sent, l4_of(self.sent));
        replace(frame, address, new, &checksums(true));
        replace(
            frame,
            quote.l4 + self.port_offset(),
            port,
            &checksums(false),
        );
    }

    /// Returns the transport checksum, if the quote has one.
    fn quoted_checksum(&self, error: &[u8], quote: &IcmpQuote) -> Option<Checksum> {
        let protocol = self.flow.protocol;
        let at = quote.l4
            + match protocol {
                UDP => 6,
                TCP => 16,
                _ => 2,
            };
        let is_present = at + 2 <= quote.end && (protocol != UDP || error[at..at + 2] != [0, 0]);
        is_present.then_some((at, protocol))
    }
}

fn l4_of(frame: &[u8]) -> usize {
    parse(frame).unwrap().l4.into()
}

fn replace(frame: &mut [u8], at: usize, new: &[u8], checksums: &[Checksum]) {
    for (i, word) in new.chunks(2).enumerate() {
        let at = at + 2 * i;
        let growth = u64::from(u16::from_be_bytes([word[0], word[1]]))
            + u64::from(!u16::from_be_bytes([frame[at], frame[at + 1]]));
        frame[at..at + 2].copy_from_slice(word);
        for &(field, protocol) in checksums {
            let old = u16::from_be_bytes([frame[field], frame[field + 1]]);
            let new = checksum::l4_add(protocol, old, growth);
            frame[field..field + 2].copy_from_slice(&new.to_be_bytes());
        }
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().into(),
        IpAddr::V6(address) => address.octets().into(),
    }
}
