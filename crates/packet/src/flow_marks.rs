//! Marks of a flow. Programs set marks and never clear them, so two CPUs can set marks of one flow
//! at the same time without loss.

use bytemuck::{Pod, Zeroable};

use crate::FlowState;

/// Flags of a TCP header (RFC 9293, section 3.1) that change the state of a flow.
pub mod tcp {
    /// The sender has no more data.
    pub const FIN: u8 = 0x01;
    /// Opens a connection.
    pub const SYN: u8 = 0x02;
    /// Resets the connection.
    pub const RST: u8 = 0x04;
    /// Acknowledges data or a connection.
    pub const ACK: u8 = 0x10;
    /// Offset of the flags in the TCP header, bytes.
    pub const OFFSET: usize = 13;

    /// Returns whether a segment requests a new connection.
    pub const fn opens(flags: u8) -> bool {
        flags & (SYN | ACK | RST | FIN) == SYN
    }
}

/// Marks of one flow. The numbers equal those of the eBPF programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct FlowMarks(u32);

impl FlowMarks {
    /// The first packet came from the second endpoint (see
    /// [`FlowKey::canonical`](crate::FlowKey::canonical)).
    pub const OPENED_BY_SECOND: Self = Self(1);
    /// A packet came from the endpoint that did not open the flow.
    pub const ANSWERED: Self = Self(1 << 1);
    /// TCP: a segment without SYN has acknowledged.
    pub const ACKNOWLEDGED: Self = Self(1 << 2);
    /// TCP: the first endpoint has sent a FIN.
    pub const FIRST_DONE: Self = Self(1 << 3);
    /// TCP: the second endpoint has sent a FIN.
    pub const SECOND_DONE: Self = Self(1 << 4);
    /// TCP: one endpoint has reset the connection.
    pub const RESET: Self = Self(1 << 5);

    const BOTH_DONE: Self = Self::FIRST_DONE.with(Self::SECOND_DONE);

    /// Returns the union of the two sets.
    #[must_use]
    pub const fn with(self, marks: Self) -> Self {
        Self(self.0 | marks.0)
    }

    /// Returns whether every mark of `marks` is set.
    pub const fn contains(self, marks: Self) -> bool {
        self.0 & marks.0 == marks.0
    }

    /// Returns the marks of a new flow. `from_second`: the second endpoint sent the first packet.
    pub const fn of_first_packet(from_second: bool) -> Self {
        if from_second {
            Self::OPENED_BY_SECOND
        } else {
            Self(0)
        }
    }

    /// Returns the marks that a further packet adds. `flags` are the flags of a TCP header.
    #[must_use]
    pub const fn of_packet(self, from_second: bool, flags: Option<u8>) -> Self {
        let mut added = Self(0);
        if from_second != self.contains(Self::OPENED_BY_SECOND) {
            added = added.with(Self::ANSWERED);
        }
        let Some(flags) = flags else {
            return added;
        };
        if flags & tcp::RST != 0 {
            added = added.with(Self::RESET);
        }
        if flags & tcp::FIN != 0 {
            added = added.with(if from_second {
                Self::SECOND_DONE
            } else {
                Self::FIRST_DONE
            });
        }
        if flags & (tcp::ACK | tcp::SYN) == tcp::ACK {
            added = added.with(Self::ACKNOWLEDGED);
        }
        added
    }

    /// Returns the state of the flow.
    pub const fn state(self, is_tcp: bool) -> FlowState {
        if !is_tcp {
            return if self.contains(Self::ANSWERED) {
                FlowState::Established
            } else {
                FlowState::New
            };
        }
        if self.contains(Self::RESET) || self.contains(Self::BOTH_DONE) {
            FlowState::Closed
        } else if self.contains(Self::FIRST_DONE) || self.contains(Self::SECOND_DONE) {
            FlowState::Closing
        } else if self.contains(Self::ACKNOWLEDGED) {
            FlowState::Established
        } else {
            FlowState::New
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM_CLIENT: bool = false;
    const FROM_SERVER: bool = true;

    /// Returns the states of a flow after each packet.
    fn states(packets: &[(bool, Option<u8>)]) -> Vec<FlowState> {
        let mut marks = FlowMarks::of_first_packet(packets[0].0);
        let is_tcp = packets[0].1.is_some();
        let mut states = vec![marks.state(is_tcp)];
        for &(from_second, flags) in &packets[1..] {
            marks = marks.with(marks.of_packet(from_second, flags));
            states.push(marks.state(is_tcp));
        }
        states
    }

    #[test]
    fn a_connection_opens_and_closes() {
        use FlowState::{Closed, Closing, Established, New};
        use tcp::{ACK, FIN, SYN};
        let whole = [
            (FROM_CLIENT, Some(SYN)),
            (FROM_SERVER, Some(SYN | ACK)),
            (FROM_CLIENT, Some(ACK)),
            (FROM_CLIENT, Some(FIN | ACK)),
            (FROM_SERVER, Some(ACK)),
            (FROM_SERVER, Some(FIN | ACK)),
            (FROM_CLIENT, Some(ACK)),
        ];
        let expected = [New, New, Established, Closing, Closing, Closed, Closed];
        assert_eq!(states(&whole), expected);
        // An observer of one direction does not see the FIN of the other endpoint.
        let half: Vec<_> = whole.into_iter().filter(|packet| !packet.0).collect();
        assert_eq!(states(&half), [New, Established, Closing, Closing]);
        // With the endpoints swapped, the states are the same.
        let swapped = whole.map(|(from, flags)| (!from, flags));
        assert_eq!(states(&swapped), expected);
    }

    #[test]
    fn a_reset_closes_the_flow() {
        use tcp::{ACK, RST, SYN};
        let refused = [
            (FROM_CLIENT, Some(SYN)),
            (FROM_SERVER, Some(RST | ACK)),
            (FROM_CLIENT, Some(ACK)),
        ];
        let expected = [FlowState::New, FlowState::Closed, FlowState::Closed];
        assert_eq!(states(&refused), expected);
    }

    #[test]
    fn an_answer_establishes_a_flow_without_tcp() {
        use FlowState::{Established, New};
        let packets = [(true, None), (true, None), (false, None), (true, None)];
        assert_eq!(states(&packets), [New, New, Established, Established]);
    }

    #[test]
    fn only_a_syn_without_ack_rst_or_fin_opens_a_connection() {
        use tcp::{ACK, FIN, RST, SYN, opens};
        assert!(opens(SYN) && opens(SYN | 0xc8));
        for flags in [0, ACK, SYN | ACK, SYN | RST, SYN | FIN, FIN, RST] {
            assert!(!opens(flags), "{flags:#x}");
        }
    }
}
