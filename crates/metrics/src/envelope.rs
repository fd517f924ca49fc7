//! The JSON envelope of `run`, `probe` and `bench`: `{"experiment", "environment", "rows", "claims"}`.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::Environment;
use crate::stats::PairedRatio;

/// A report with rows of any kind; each row's keys carry their unit.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report<Row> {
    /// Name of the experiment or command.
    pub experiment: String,
    /// Where it was measured.
    pub environment: Environment,
    /// The figures.
    pub rows: Vec<Row>,
    /// What the figures are held against.
    pub claims: Vec<Claim>,
}

/// A figure against its bound.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Claim {
    /// Names the claim within its experiment.
    pub id: String,
    /// The published figure, or null.
    pub paper: Value,
    /// Where the published figure stands: paper, figure or table, section.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The figure measured here.
    pub measured: Value,
    /// What it must not cross, such as `"<= 1.12"`.
    pub bound: Value,
    /// Whether it holds; null when too little was measured to say.
    pub holds: Option<bool>,
}

impl Claim {
    /// "The ratio is at most `bound`", decided by [`PairedRatio::at_most`].
    pub fn ratio_at_most(
        id: impl Into<String>,
        paper: impl Into<Value>,
        ratio: &PairedRatio,
        bound: f64,
    ) -> Self {
        Self::ratio(
            id,
            paper,
            ratio,
            format!("<= {bound}"),
            ratio.at_most(bound),
        )
    }

    /// "The ratio is at least `bound`", decided by [`PairedRatio::at_least`].
    pub fn ratio_at_least(
        id: impl Into<String>,
        paper: impl Into<Value>,
        ratio: &PairedRatio,
        bound: f64,
    ) -> Self {
        Self::ratio(
            id,
            paper,
            ratio,
            format!(">= {bound}"),
            ratio.at_least(bound),
        )
    }

    fn ratio(
        id: impl Into<String>,
        paper: impl Into<Value>,
        ratio: &PairedRatio,
        bound: String,
        holds: Option<bool>,
    ) -> Self {
        let estimate = ratio.estimate;
        Self {
            id: id.into(),
            paper: paper.into(),
            source: None,
            measured: json!({
                "median_ratio": estimate.value,
                "ci95_low": estimate.interval.map(|i| i.low),
                "ci95_high": estimate.interval.map(|i| i.high),
                "rounds": estimate.samples,
            }),
            bound: bound.into(),
            holds,
        }
    }

    /// The claim with where its published figure stands.
    #[must_use]
    pub fn from_source(self, source: impl Into<String>) -> Self {
        Self {
            source: Some(source.into()),
            ..self
        }
    }

    /// "The figure is at most `bound`": for figures that are not ratios and need no rounds, such as memory.
    pub fn figure_at_most(
        id: impl Into<String>,
        paper: impl Into<Value>,
        measured: f64,
        bound: f64,
    ) -> Self {
        Self {
            id: id.into(),
            paper: paper.into(),
            source: None,
            measured: measured.into(),
            bound: format!("<= {bound}").into(),
            holds: Some(measured <= bound),
        }
    }
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "exact by construction")]
mod tests {
    use super::*;

    #[test]
    fn serializes_as_the_envelope() {
        let ratio = PairedRatio::new(&[9.0; 30], &[10.0; 30]).unwrap();
        let few = PairedRatio::new(&[9.0; 5], &[10.0; 5]).unwrap();
        let report = Report {
            experiment: "hop-cost".to_owned(),
            environment: Environment::default(),
            rows: vec![json!({"rtt_p50_us": 9.0})],
            claims: vec![
                Claim::ratio_at_most("one-kernel-hop", 1.22, &ratio, 0.95).from_source("Fig. 3"),
                Claim::ratio_at_least("quick", Value::Null, &few, 0.5),
                Claim::figure_at_most("memory", Value::Null, 70.0, 64.0),
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
}
