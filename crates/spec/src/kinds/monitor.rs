//! `monitor`.

use super::prelude::*;

config! {
    /// Configuration of a `monitor` function.
    #[derive(Copy)]
    pub struct MonitorConfig {
        /// flows it keeps at most; when one more comes the one that was used longest ago goes (in the kernel, one that was not used
        /// of late), and this is counted
        "flows" flows: u32 = FLOWS;
    }
}

/// `monitor`.
pub static MONITOR: Kind = Kind {
    name: "monitor",
    class: Class::Basic,
    kernel: Some(Cost::new(30.0, 0.0)),
    user: Some(Cost::new(25.0, 0.0)),
    touches: Touches::Header,
    state: State::PerFlow,
    config: MonitorConfig::KEYS,
    description: "Counts packets and bytes by five-tuple and hands every packet on unchanged; `myelin ps --flows` shows them.",
    example: "{ name: meter, kind: monitor, config: { flows: 4096 } }",
    read: |fields| FunctionConfig::Monitor(MonitorConfig::of(fields)),
    ..Kind::BASE
};
