//! The machine and the settings of a measurement.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The machine and the settings of a measurement.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Environment {
    /// Kernel, CPU, cores, virtualization and power source, as the crate `measure` reads them.
    #[serde(flatten)]
    pub machine: Map<String, Value>,
    /// Version of Myelin.
    pub version: String,
    /// Time of the measurement, seconds since 1970.
    pub taken_at_unix_s: u64,
    /// Load average over the last minute at that time.
    pub load_1min: Option<f64>,
    /// Settings that affect the figures: probe mode, idle mode, hook, XDP mode.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
}

impl Environment {
    /// Adds a setting.
    #[must_use]
    pub fn with(mut self, setting: &str, value: impl Into<String>) -> Self {
        self.settings.insert(setting.to_owned(), value.into());
        self
    }

    /// Names and values for a table.
    pub fn lines(&self) -> Vec<(String, String)> {
        let text = |name: &str| match self.machine.get(name) {
            None | Some(Value::Null) => "none".to_owned(),
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
        };
        let flag = |name: &str| self.machine.get(name) == Some(&Value::Bool(true));
        let figure = |name: &str| self.machine.get(name).and_then(Value::as_f64);
        let virtualized = match text("hypervisor").as_str() {
            "none" if flag("virtualized") => "yes".to_owned(),
            "none" => "no".to_owned(),
            name => format!("yes, {name}"),
        };
        let gib = figure("memory_bytes").unwrap_or_default() / f64::from(1 << 30);
        let mut lines = [
            (
                "kernel",
                format!("{} {}", text("kernel"), text("architecture")),
            ),
            (
                "CPU",
                format!("{}, {} cores online", text("cpu"), text("cores")),
            ),
            ("virtualized", virtualized),
            ("clock source", text("clock_source")),
            ("frequency scaling", text("cpufreq_driver")),
            ("power source", text("power_source")),
            ("memory", format!("{gib:.1} GiB")),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec();
        if let Some(load) = self.load_1min {
            lines.push(("load, 1 min".to_owned(), format!("{load:.2}")));
        }
        lines.push(("Myelin".to_owned(), self.version.clone()));
        lines.extend(self.settings.clone());
        lines
    }
}
