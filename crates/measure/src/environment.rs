//! What a report says about where its figures come from.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use myelin_linux::machine::Machine;
use serde::Serialize;

/// The machine and the circumstances of a measurement.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Environment {
    /// Kernel, CPU, cores, virtualization, power source.
    #[serde(flatten)]
    pub machine: Machine,
    /// Version of Myelin.
    pub version: String,
    /// When it was taken, seconds since 1970.
    pub taken_at_unix_s: u64,
    /// Load average over the last minute at that time: whether others were at work.
    pub load_1min: Option<f64>,
    /// What else decides the figures: probe mode, idle mode, hook, XDP mode.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
}

impl Environment {
    /// Looks at the machine now.
    pub fn detect() -> Self {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Self {
            machine: Machine::detect(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            taken_at_unix_s: since_1970.map_or(0, |d| d.as_secs()),
            load_1min: load.split(' ').next().and_then(|word| word.parse().ok()),
            settings: BTreeMap::new(),
        }
    }

    /// With one more setting.
    #[must_use]
    pub fn with(mut self, setting: &str, value: impl Into<String>) -> Self {
        self.settings.insert(setting.to_owned(), value.into());
        self
    }

    /// Names and values as a table shows them.
    pub fn lines(&self) -> Vec<(String, String)> {
        let machine = &self.machine;
        let mut lines = vec![
            (
                "kernel".to_owned(),
                format!("{} {}", machine.kernel, machine.architecture),
            ),
            (
                "CPU".to_owned(),
                format!("{}, {} cores online", machine.cpu, machine.cores),
            ),
            (
                "virtualized".to_owned(),
                match &machine.hypervisor {
                    Some(name) => format!("yes, {name}"),
                    None if machine.virtualized => "yes".to_owned(),
                    None => "no".to_owned(),
                },
            ),
            (
                "clock source".to_owned(),
                known(machine.clock_source.as_ref()),
            ),
            (
                "frequency scaling".to_owned(),
                known(machine.cpufreq_driver.as_ref()),
            ),
            (
                "power source".to_owned(),
                serde_json::to_value(machine.power_source)
                    .ok()
                    .and_then(|value| value.as_str().map(str::to_owned))
                    .unwrap_or_default(),
            ),
            (
                "memory".to_owned(),
                format!(
                    "{:.1} GiB",
                    machine.memory_bytes as f64 / f64::from(1 << 30)
                ),
            ),
        ];
        if let Some(load) = self.load_1min {
            lines.push(("load, 1 min".to_owned(), format!("{load:.2}")));
        }
        lines.push(("Myelin".to_owned(), self.version.clone()));
        lines.extend(self.settings.iter().map(|(k, v)| (k.clone(), v.clone())));
        lines
    }
}

fn known(value: Option<&String>) -> String {
    value.map_or_else(|| "none".to_owned(), Clone::clone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_what_the_envelope_promises() {
        let environment = Environment::detect().with("probe_mode", "inline");
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
