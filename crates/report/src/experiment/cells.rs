//! Cells of rows and claims, for the terminal and the page.

use myelin_metrics::Row;
use myelin_metrics::envelope::{Claim, Verdict};
use serde_json::Value;

/// The columns of a table with such rows. An interval shares the column of its figure.
pub(super) fn headings(row: &Row) -> Vec<&str> {
    row.fields()
        .map(|(name, _)| name)
        .filter(|name| !name.contains("_ci95_"))
        .collect()
}

/// A figure, with half the width of its interval if it has one.
pub fn cell(row: &Row, name: &str) -> String {
    let figure = row.get(name).map_or_else(String::new, plain);
    match row.interval(name) {
        Some((low, high)) => format!("{figure} \u{b1} {}", number((high - low) / 2.0)),
        None => figure,
    }
}

/// The measured value of a claim: a figure, or a median with its interval and the number of
/// deployments.
pub(super) fn measured(value: &Value) -> String {
    let figure = |name: &str| value.get(name).and_then(Value::as_f64);
    let Some(deployments) = value.get("deployments").and_then(Value::as_u64) else {
        return plain(value);
    };
    let Some(median) = figure("median") else {
        return "-".to_owned();
    };
    match (figure("ci95_low"), figure("ci95_high")) {
        (Some(low), Some(high)) => {
            format!(
                "{} [{}, {}] ({deployments})",
                number(median),
                number(low),
                number(high)
            )
        }
        _ => format!("{} ({deployments})", number(median)),
    }
}

/// The verdict of a claim, with the reason if it is undecided.
pub(super) fn verdict_of(claim: &Claim) -> String {
    match (claim.verdict(), &claim.undecided) {
        (None, _) => "-".to_owned(),
        (Some(Verdict::Holds), _) => "holds".to_owned(),
        (Some(Verdict::False), _) => "FALSE".to_owned(),
        (Some(Verdict::Undecided), None) => "undecided".to_owned(),
        (Some(Verdict::Undecided), Some(reason)) => format!("undecided: {reason}"),
    }
}

/// A value without quotes; a figure with at most three digits behind the point.
pub fn plain(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(whole) if !whole.is_f64() => whole.to_string(),
        Value::Object(figures) => {
            let named = |(name, value): (&String, &Value)| {
                format!("{} {}", name.replace('_', " "), plain(value))
            };
            figures.iter().map(named).collect::<Vec<_>>().join(", ")
        }
        value => value.as_f64().map_or_else(|| value.to_string(), number),
    }
}

/// Three digits behind the point below 10, fewer for larger figures, more for small ones.
pub fn number(figure: f64) -> String {
    match figure.abs() {
        size if size > 0.0 && size < 0.001 => format!("{figure:.5}"),
        size if size < 10.0 => format!("{figure:.3}"),
        size if size < 1000.0 => format!("{figure:.1}"),
        _ => format!("{figure:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_their_interval() {
        let row = Row::of("rtt")
            .with("variant", "tcx")
            .with("payload_bytes", 256)
            .with("rtt_p50_us", 9.1234)
            .with("rtt_p50_ci95_low_us", 9.0)
            .with("rtt_p50_ci95_high_us", 9.2)
            .with("what", Value::Null);
        assert_eq!(cell(&row, "rtt_p50_us"), "9.123 \u{b1} 0.100");
        assert_eq!(cell(&row, "payload_bytes"), "256");
        assert_eq!(cell(&row, "what"), "-");
        assert_eq!(
            headings(&row),
            ["variant", "payload_bytes", "rtt_p50_us", "what"]
        );
    }

    #[test]
    fn claims_show_what_they_rest_on() {
        let ratio = serde_json::json!({ "median": 0.93, "ci95_low": 0.92, "ci95_high": 0.94, "deployments": 12 });
        assert_eq!(measured(&ratio), "0.930 [0.920, 0.940] (12)");
        assert_eq!(measured(&serde_json::json!(41.5)), "41.5");
        let shares = serde_json::json!({ "calvin_share": 0.252, "centralized_share": 0.4 });
        assert_eq!(
            measured(&shares),
            "calvin share 0.252, centralized share 0.400"
        );
        let claim = |holds| Claim::new("x", ()).with_bound("<= 1", holds);
        assert_eq!(verdict_of(&claim(Some(true))), "holds");
        assert_eq!(verdict_of(&claim(Some(false))), "FALSE");
        let undecided = Claim::at_most("x", None, 1.0);
        assert_eq!(verdict_of(&undecided), "undecided: not measured");
        assert_eq!(measured(&undecided.measured), "-");
        assert_eq!(verdict_of(&Claim::shown("x", None)), "-");
    }
}
