//! The JSON envelope of `run`, `probe` and `bench`: `{"experiment", "environment", "rows",
//! "claims"}`.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::Environment;
use crate::stats::Estimate;

/// A report with rows of any type; each row's keys contain their unit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report<Row> {
    /// Name of the experiment or command.
    pub experiment: String,
    /// The machine and the settings.
    pub environment: Environment,
    /// The figures.
    pub rows: Vec<Row>,
    /// Measured figures with their bounds. Empty if the measurement ended early.
    pub claims: Vec<Claim>,
    /// Why the measurement ended before it was complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_early: Option<String>,
}

impl<Row: Serialize> Report<Row> {
    /// The report as JSON, with a line for each row and claim.
    ///
    /// # Errors
    /// A row is not valid JSON.
    pub fn to_lines(&self) -> Result<String, serde_json::Error> {
        fn lines(values: &[impl Serialize]) -> Result<String, serde_json::Error> {
            let lines: Result<Vec<_>, _> = values.iter().map(serde_json::to_string).collect();
            Ok(lines?.join(",\n"))
        }
        let ended_early = match &self.ended_early {
            Some(reason) => format!("\"ended_early\":{},\n", serde_json::to_string(reason)?),
            None => String::new(),
        };
        Ok(format!(
            "{{\"experiment\":{},\n\"environment\":{},\n{ended_early}\"rows\":[\n{}\n],\n\"claims\":[\n{}\n]}}\n",
            serde_json::to_string(&self.experiment)?,
            serde_json::to_string(&self.environment)?,
            lines(&self.rows)?,
            lines(&self.claims)?,
        ))
    }
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
    /// Its bound, such as `"<= 1.12"`; null if the figure is shown and not judged.
    pub bound: Value,
    /// Whether the claim holds; null if it is undecided.
    pub holds: Option<bool>,
    /// Why the claim is undecided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undecided: Option<String>,
}

/// The verdict of a claim with a bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The measured interval is within the bound.
    Holds,
    /// The measured interval is outside the bound.
    False,
    /// The measurement cannot decide.
    Undecided,
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
            undecided: None,
        }
    }

    /// An estimate without a bound.
    pub fn shown(id: impl Into<String>, estimate: Option<Estimate>) -> Self {
        Self::new(id, figures(estimate))
    }

    /// "The figure is at most `bound`", decided by [`Estimate::at_most`].
    pub fn at_most(id: impl Into<String>, estimate: Option<Estimate>, bound: f64) -> Self {
        let holds = estimate.and_then(|estimate| estimate.at_most(bound));
        Self::shown(id, estimate)
            .with_bound(format!("<= {bound}"), holds)
            .explained(estimate)
    }

    /// "The figure is at least `bound`", decided by [`Estimate::at_least`].
    pub fn at_least(id: impl Into<String>, estimate: Option<Estimate>, bound: f64) -> Self {
        let holds = estimate.and_then(|estimate| estimate.at_least(bound));
        Self::shown(id, estimate)
            .with_bound(format!(">= {bound}"), holds)
            .explained(estimate)
    }

    /// "The figure is at most `bound`", for a figure that is not an estimate, such as a count.
    /// Undecided without a figure.
    pub fn figure_at_most(
        id: impl Into<String>,
        measured: impl Into<Option<f64>>,
        bound: f64,
    ) -> Self {
        let measured = measured.into().filter(|figure| !figure.is_nan());
        let holds = measured.map(|figure| figure <= bound);
        let claim = Self::new(id, measured).with_bound(format!("<= {bound}"), holds);
        if measured.is_some() {
            claim
        } else {
            claim.undecided(NOT_MEASURED)
        }
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

    /// The claim, undecided for this reason.
    #[must_use]
    pub fn undecided(self, reason: impl Into<String>) -> Self {
        Self {
            holds: None,
            undecided: Some(reason.into()),
            ..self
        }
    }

    /// The claim if its precondition holds, else undecided with the reason of the precondition.
    #[must_use]
    pub fn provided(self, precondition: Result<(), String>) -> Self {
        match precondition {
            Ok(()) => self,
            Err(reason) => self.undecided(reason),
        }
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

    /// Its verdict; `None` if it has no bound.
    pub fn verdict(&self) -> Option<Verdict> {
        (!self.bound.is_null()).then_some(match self.holds {
            Some(true) => Verdict::Holds,
            Some(false) => Verdict::False,
            None => Verdict::Undecided,
        })
    }

    /// The measured figure; `None` if there are several, or none.
    pub fn figure(&self) -> Option<f64> {
        let figure = self.measured.as_f64();
        figure.or_else(|| self.measured.get("median")?.as_f64())
    }

    /// Both ends of the interval of its estimate.
    pub fn interval(&self) -> Option<(f64, f64)> {
        let end = |name: &str| self.measured.get(name)?.as_f64();
        end("ci95_low").zip(end("ci95_high"))
    }

    /// Adds the reason why an estimate does not decide.
    fn explained(self, estimate: Option<Estimate>) -> Self {
        if self.holds.is_some() {
            return self;
        }
        let reason = match estimate {
            None => NOT_MEASURED.to_owned(),
            Some(Estimate {
                interval: None,
                samples,
                ..
            }) => format!("too few deployments for an interval: {samples}"),
            Some(_) => "the interval contains the bound".to_owned(),
        };
        self.undecided(reason)
    }
}

const NOT_MEASURED: &str = "not measured";

/// An estimate as JSON, with its interval and the number of its samples.
fn figures(estimate: Option<Estimate>) -> Value {
    let interval = estimate.and_then(|estimate| estimate.interval);
    json!({
        "median": estimate.map(|estimate| estimate.value),
        "ci95_low": interval.map(|interval| interval.low),
        "ci95_high": interval.map(|interval| interval.high),
        "deployments": estimate.map_or(0, |estimate| estimate.samples),
    })
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "exact by construction")]
mod tests {
    use super::*;
    use crate::stats::median_ci;

    #[test]
    fn serializes_as_the_envelope() {
        let ratio = median_ci(&[0.9; 30], 0.95);
        let few = median_ci(&[0.9; 5], 0.95);
        let report = Report {
            experiment: "hop-cost".to_owned(),
            environment: Environment::default(),
            rows: vec![json!({"rtt_p50_us": 9.0})],
            claims: vec![
                Claim::at_most("one-kernel-hop", ratio, 0.95).with_published(1.22, "Fig. 3"),
                Claim::at_least("quick", few, 0.5),
                Claim::figure_at_most("memory", 70.0, 64.0),
            ],
            ended_early: None,
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
        assert_eq!(claims[0]["measured"]["deployments"], 30);
        assert_eq!(claims[1]["holds"], Value::Null);
        assert_eq!(
            claims[1]["undecided"],
            "too few deployments for an interval: 5"
        );
        assert_eq!(claims[2]["holds"], false);
        let read: Report<Value> = serde_json::from_value(json).unwrap();
        assert_eq!(read, report);
        for ended_early in [None, Some("a \"subject\" ended".to_owned())] {
            let report = Report {
                ended_early,
                ..report.clone()
            };
            let lines = report.to_lines().unwrap();
            assert_eq!(
                serde_json::from_str::<Report<Value>>(&lines).unwrap(),
                report
            );
        }
    }

    #[test]
    fn a_claim_without_a_decisive_measurement_is_undecided() {
        let spread: Vec<f64> = (0..20).map(f64::from).collect();
        let verdict = |claim: Claim| {
            assert_eq!(
                claim.holds.is_none(),
                claim.undecided.is_some(),
                "{claim:?}"
            );
            claim.verdict().unwrap()
        };
        let at_most =
            |samples: &[f64], bound| verdict(Claim::at_most("x", median_ci(samples, 0.95), bound));
        let at_least =
            |samples: &[f64], bound| verdict(Claim::at_least("x", median_ci(samples, 0.95), bound));
        assert_eq!(at_most(&spread, 15.0), Verdict::Holds);
        assert_eq!(at_most(&spread, 10.0), Verdict::Undecided);
        assert_eq!(at_most(&spread, 2.0), Verdict::False);
        assert_eq!(at_least(&spread, 2.0), Verdict::Holds);
        assert_eq!(at_least(&spread, 10.0), Verdict::Undecided);
        assert_eq!(at_least(&spread, 15.0), Verdict::False);
        for samples in [&[][..], &[1.0; 5], &[f64::NAN; 20]] {
            assert_eq!(at_most(samples, 10.0), Verdict::Undecided);
            assert_eq!(at_least(samples, 0.0), Verdict::Undecided);
        }
        for missing in [None, Some(f64::NAN)] {
            let claim = Claim::figure_at_most("x", missing, 10.0);
            assert_eq!(verdict(claim), Verdict::Undecided);
        }
        let claim = Claim::figure_at_most("x", 1.0, 10.0);
        assert_eq!(verdict(claim.clone()), Verdict::Holds);
        let claim = claim.provided(Err("the sender was too slow".to_owned()));
        assert_eq!(verdict(claim), Verdict::Undecided);
        assert_eq!(Claim::shown("x", None).verdict(), None);
    }
}
