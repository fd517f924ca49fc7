//! `monitor`.

use super::prelude::*;

config! {
    /// Configuration of a `monitor` function.
    #[derive(Copy)]
    pub struct MonitorConfig {
        /// The most flows in the table. A new flow replaces the flow that was idle longest (in the
        /// kernel, one of the idle flows). A counter records replacements.
        "flows" flows: u32 = FLOWS;
    }
}

/// `monitor`.
pub static MONITOR: Kind = Kind {
    name: "monitor",
    class: Class::Basic,
    kernel: Some(Cost::new(30.0, 0.0)),
    user: Some(Cost::new(25.0, 0.0)),
    works_on: PacketParts::Header,
    takes_super_packets: true,
    user_takes_super_packets: true,
    state: State::PerFlow,
    config: MonitorConfig::KEYS,
    description: "Counts packets and bytes per flow (five-tuple). Forwards packets unchanged. `myelin ps \
                  --flows` shows the flows.",
    example: "{ name: meter, kind: monitor, config: { flows: 4096 } }",
    read: |fields| FunctionConfig::Monitor(MonitorConfig::from_fields(fields)),
    ..Kind::BASE
};
