//! A row of a report: named figures in table order.

use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::stats::Estimate;

/// Named figures; each name contains its unit.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Row(Vec<(String, Value)>);

impl Row {
    /// A row of a table; all rows of a table have the same fields.
    pub fn of(table: &str) -> Self {
        Self::default().with("table", table)
    }

    /// Adds a field.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.0.push((name.to_owned(), value.into()));
        self
    }

    /// Adds an estimate and both ends of its 95 % interval.
    #[must_use]
    pub fn with_estimate(self, name: &str, unit: &str, estimate: Option<Estimate>) -> Self {
        let interval = estimate.and_then(|estimate| estimate.interval);
        self.with(
            &format!("{name}{unit}"),
            estimate.map(|estimate| estimate.value),
        )
        .with(&format!("{name}_ci95_low{unit}"), interval.map(|i| i.low))
        .with(&format!("{name}_ci95_high{unit}"), interval.map(|i| i.high))
    }

    /// The row's table.
    pub fn table(&self) -> &str {
        self.get("table")
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    /// The value of a field.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0
            .iter()
            .find_map(|(field, value)| (field == name).then_some(value))
    }

    /// Both ends of a figure's interval, if [`Row::with_estimate`] added it.
    pub fn interval(&self, name: &str) -> Option<(f64, f64)> {
        let end = |end: &str| {
            let with_unit = name
                .rsplit_once('_')
                .and_then(|(figure, unit)| self.get(&format!("{figure}_ci95_{end}_{unit}")));
            let without_unit = || self.get(&format!("{name}_ci95_{end}"));
            with_unit.or_else(without_unit)?.as_f64()
        };
        end("low").zip(end("high"))
    }

    /// The fields without the table's name.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0
            .iter()
            .filter(|(name, _)| name != "table")
            .map(|(name, value)| (name.as_str(), value))
    }
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Row {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// Keeps the order of the fields, which a map would sort.
        struct Fields;

        impl<'de> Visitor<'de> for Fields {
            type Value = Row;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of figures")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Row, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Row(fields))
            }
        }

        deserializer.deserialize_map(Fields)
    }
}

#[cfg(test)]
mod tests {
    use crate::stats::median_ci;

    use super::*;

    #[test]
    fn fields_keep_their_order() {
        let row = Row::of("rtt")
            .with("variant", "direct")
            .with("a_us", 1.5)
            .with_estimate("rtt", "_us", median_ci(&[1.0; 9], 0.95))
            .with("none", Value::Null);
        let share = Row::default().with_estimate("share", "", median_ci(&[0.5; 9], 0.95));
        assert_eq!(share.interval("share"), Some((0.5, 0.5)));
        assert_eq!(
            serde_json::to_string(&row).unwrap(),
            r#"{"table":"rtt","variant":"direct","a_us":1.5,"rtt_us":1.0,"rtt_ci95_low_us":1.0,"rtt_ci95_high_us":1.0,"none":null}"#
        );
        let text = serde_json::to_string(&row).unwrap();
        assert_eq!(serde_json::from_str::<Row>(&text).unwrap(), row);
        assert_eq!(row.table(), "rtt");
        assert_eq!(
            (row.interval("rtt_us"), row.interval("a_us")),
            (Some((1.0, 1.0)), None)
        );
        assert_eq!(row.fields().next().unwrap().0, "variant");
        assert_eq!(
            Row::default().with_estimate("x", "_ns", None).get("x_ns"),
            Some(&Value::Null)
        );
    }
}
