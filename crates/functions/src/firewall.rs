//! `firewall`: drops packets that its rules deny.

use myelin_packet::IcmpQuote;
use myelin_packet::rules::{Action, RuleTables, RulesError};
use myelin_spec::FirewallConfig;

use crate::{Emitter, Function, Packet, Verdict};

/// A stateless packet filter. The first matching rule decides, or the default if no rule matches.
#[derive(Clone, Debug)]
pub struct Firewall {
    tables: RuleTables,
    /// Indexed by rule number.
    actions: Vec<Action>,
    default: Action,
    drops_fragments: bool,
}

impl Firewall {
    /// Compiles the rules.
    pub fn new(config: &FirewallConfig) -> Result<Self, RulesError> {
        Ok(Self {
            tables: RuleTables::new(&config.rules)?,
            actions: config.rules.iter().map(|rule| rule.action).collect(),
            default: config.default,
            drops_fragments: config.drops_fragments(),
        })
    }
}

impl Firewall {
    /// Judges a packet that no rule matches. An ICMP error passes if a rule allows the flow of the
    /// quoted packet in the direction of the error (RFC 4890, section 4.3.1).
    #[cold]
    #[inline(never)]
    fn judge_error(&self, packet: &Packet<'_>) -> Action {
        let frame = packet.bytes();
        IcmpQuote::find(frame, packet.headers())
            .and_then(|quote| quote.five_tuple(frame))
            .and_then(|quoted| self.tables.first_match(&quoted.reversed()))
            .map_or(self.default, |rule| self.actions[rule])
    }
}

impl Function for Firewall {
    #[inline]
    fn process(&mut self, packet: &mut Packet<'_>, _emitter: &mut dyn Emitter) -> Verdict {
        let headers = packet.headers();
        if self.drops_fragments && headers.flags.is_fragment() {
            return Verdict::Drop;
        }
        let Some(tuple) = headers.try_five_tuple(packet.bytes()) else {
            return Verdict::Drop;
        };
        let action = match self.tables.first_match(&tuple) {
            Some(rule) => self.actions[rule],
            None if self.default == Action::Deny => self.judge_error(packet),
            None => self.default,
        };
        match action {
            Action::Allow => Verdict::Forward,
            Action::Deny => Verdict::Drop,
        }
    }
}
