//! Describes the machine that a measurement runs on.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use myelin_linux::machine::Machine;
use myelin_metrics::Environment;
use serde_json::{Map, Value};

/// Describes this machine and its current load.
pub fn environment() -> Environment {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let machine = match serde_json::to_value(Machine::detect()) {
        Ok(Value::Object(machine)) => machine,
        _ => Map::new(),
    };
    Environment {
        machine,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        taken_at_unix_s: since_1970.map_or(0, |d| d.as_secs()),
        load_1min: load.split(' ').next().and_then(|word| word.parse().ok()),
        settings: BTreeMap::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_has_all_keys_of_the_envelope() {
        let environment = environment().with("probe_mode", "inline");
        let json = serde_json::to_value(&environment).unwrap();
        for key in [
            "kernel",
            "cpu",
            "cores",
            "virtualized",
            "power_source",
            "version",
        ] {
            assert!(json.get(key).is_some(), "{key} in {json}");
        }
        assert_eq!(json["settings"]["probe_mode"], "inline");
        assert!(json["taken_at_unix_s"].as_u64().unwrap() > 1_700_000_000);
        let lines = environment.lines();
        assert!(lines.contains(&("probe_mode".to_owned(), "inline".to_owned())));
        assert!(
            lines
                .iter()
                .all(|(name, value)| !name.is_empty() && !value.is_empty())
        );
    }
}
