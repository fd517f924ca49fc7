//! The JSON envelope of `run`, `probe` and `bench`: `{"experiment", "environment", "rows",
//! "claims"}`.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::Environment;
use crate::stats::Estimate;

/// A report with rows of any type; each row's keys contain their unit.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report<Row> {
    /// Name of the experiment or command.
    pub experiment: String,
    /// The machine and the settings.
    pub environment: Environment,
    /// The figures.
    pub rows: Vec<Row>,
    /// Measured figures with their bounds.
    pub claims: Vec<Claim>,
}

/// A measured figure and its bound.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Claim {
    /// Name of the claim within its experiment.
    pub id: String,
    /// The published figure, or null.
    pub paper: Value,
    /// Source of the published figure: paper, figure or table, section.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The figure measured here.
    pub measured: Value,
    /// Its bound, such as `"<= 1.12"`.
    pub bound: Value,
    /// Whether the claim holds; null if there are too few measurements.
    pub holds: Option<bool>,
}

impl Claim {
    /// A measured figure without a bound.
    pub fn new(id: impl Into<String>, measured: impl Into<Value>) -> Self {
        Self {
            id: id.into(),
            paper: Value::Null,
            source: None,
            measured: measured.into(),
            bound: Value::Null,
            holds: None,
        }
    }

    /// "The ratio is at most `bound`", decided by [`Estimate::at_most`].
    pub fn ratio_at_most(id: impl Into<String>, ratio: Estimate, bound: f64) -> Self {
        Self::new(id, estimate_json("median_ratio", Some(ratio)))
            .with_bound(format!("<= {bound}"), ratio.at_most(bound))
    }

    /// "The ratio is at least `bound`", decided by [`Estimate::at_least`].
    pub fn ratio_at_least(id: impl Into<String>, ratio: Estimate, bound: f64) -> Self {
        Self::new(id, estimate_json("median_ratio", Some(ratio)))
            .with_bound(format!(">= {bound}"), ratio.at_least(bound))
    }

    /// "The median is at most `bound`", decided by [`Estimate::at_most`].
    pub fn median_at_most(id: impl Into<String>, median: Option<Estimate>, bound: f64) -> Self {
        let holds = median.and_then(|median| median.at_most(bound));
        Self::new(id, estimate_json("median", median)).with_bound(format!("<= {bound}"), holds)
    }

    /// "The figure is at most `bound`": for figures that are not ratios and need no rounds, such as
    /// memory.
    pub fn figure_at_most(id: impl Into<String>, measured: f64, bound: f64) -> Self {
        Self::new(id, measured).with_bound(format!("<= {bound}"), Some(measured <= bound))
    }

    /// The claim with a bound and its verdict.
    #[must_use]
    pub fn with_bound(self, bound: impl Into<Value>, holds: Option<bool>) -> Self {
        Self {
            bound: bound.into(),
            holds,
            ..self
        }
    }

    /// The claim without its bound: reports show the figure without a verdict.
    #[must_use]
    pub fn without_bound(self) -> Self {
        self.with_bound(Value::Null, None)
    }

    /// The claim with the published figure and its source.
    #[must_use]
    pub fn with_published(self, paper: impl Into<Value>, source: impl Into<String>) -> Self {
        Self {
            paper: paper.into(),
            source: Some(source.into()),
            ..self
        }
    }
}

/// An estimate as JSON, with its interval and rounds.
fn estimate_json(name: &str, estimate: Option<Estimate>) -> Value {
    let interval = estimate.and_then(|estimate| estimate.interval);
    json!({
        name: estimate.map(|estimate| estimate.value),
        "ci95_low": interval.map(|interval| interval.low),
        "ci95_high": interval.map(|interval| interval.high),
        "rounds": estimate.map(|estimate| estimate.samples),
    })
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "exact by construction")]
mod tests {
    use super::*;
    use crate::stats::{median_ci, paired_ratio};

    #[test]
    fn serializes_as_the_envelope() {
        let ratio = paired_ratio(&[9.0; 30], &[10.0; 30]).unwrap();
        let few = paired_ratio(&[9.0; 5], &[10.0; 5]).unwrap();
        let report = Report {
            experiment: "hop-cost".to_owned(),
            environment: Environment::default(),
            rows: vec![json!({"rtt_p50_us": 9.0})],
            claims: vec![
                Claim::ratio_at_most("one-kernel-hop", ratio, 0.95).with_published(1.22, "Fig. 3"),
                Claim::ratio_at_least("quick", few, 0.5),
                Claim::figure_at_most("memory", 70.0, 64.0),
            ],
        };
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["experiment"], "hop-cost");
        assert_eq!(json["rows"][0]["rtt_p50_us"], 9.0);
        let claims = &json["claims"];
        assert_eq!(claims[0]["bound"], "<= 0.95");
        assert_eq!(
            (&claims[0]["holds"], &claims[0]["paper"]),
            (&json!(true), &json!(1.22))
        );
        assert_eq!(claims[0]["source"], "Fig. 3");
        assert!(claims[1].get("source").is_none());
        assert_eq!(claims[0]["measured"]["rounds"], 30);
        assert_eq!(claims[1]["holds"], Value::Null);
        assert_eq!(claims[2]["holds"], false);
    }

    #[test]
    fn median_claim_needs_enough_rounds() {
        let claim = |samples: &[f64], bound| {
            Claim::median_at_most("x", median_ci(samples, 0.95), bound).holds
        };
        assert_eq!(claim(&[10.0; 30], 10.0), Some(true));
        assert_eq!(claim(&[10.0; 30], 9.9), Some(false));
        assert_eq!(claim(&[10.0; 29], 20.0), None);
        assert_eq!(claim(&[], 20.0), None);
    }
}
