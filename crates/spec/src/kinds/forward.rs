//! `forward`.

use super::prelude::*;

/// `forward`.
pub static FORWARD: Kind = Kind {
    name: "forward",
    class: Class::Elementary,
    kernel: Some(Cost::new(1.0, 0.0)),
    user: Some(Cost::new(0.5, 0.0)),
    takes_super_packets: true,
    user_takes_super_packets: true,
    description: "Forwards packets unchanged. It is the cheapest function, and the baseline for all others.",
    example: "{ name: pass-on, kind: forward }",
    kernel_constants: Some(|_| Vec::new()),
    read: |_| FunctionConfig::Forward,
    ..Kind::BASE
};
