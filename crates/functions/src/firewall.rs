//! `firewall`: drops packets that its rules deny.

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
        let action = self
            .tables
            .first_match(&tuple)
            .map_or(self.default, |rule| self.actions[rule]);
        match action {
            Action::Allow => Verdict::Forward,
            Action::Deny => Verdict::Drop,
        }
    }
}
