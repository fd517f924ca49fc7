//! Reports as files: sealed, so that a reader detects a changed figure.
//!
//! A file is the report as JSON ([`Report::to_lines`]) with two more members: the version of the
//! format, and last the SHA-256 of all text before it. The digest detects mistakes, not forgery:
//! an author who changes a figure on purpose can compute a new digest.

use aws_lc_rs::digest::{SHA256, digest};
use myelin_metrics::Row;
use myelin_metrics::envelope::Report;
use serde::Deserialize;

/// Version of the format. A reader refuses other versions.
const FORMAT: u32 = 2;
const DIGEST: &str = ",\n\"sha256\":\"";

/// A file that is no valid envelope.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum EnvelopeError {
    /// The text is not JSON, or lacks members.
    #[error("it is no envelope of an experiment: {0}")]
    Invalid(String),
    /// The file has another version.
    #[error("it has format {0}, this program reads {FORMAT}; measure again")]
    Version(u32),
    /// The digest does not match.
    #[error("its text does not match its digest: it was altered or cut; measure again")]
    Altered,
}

/// The text of an envelope file.
///
/// # Errors
/// [`EnvelopeError::Invalid`] if a row is not valid JSON.
pub fn seal_envelope(report: &Report<Row>) -> Result<String, EnvelopeError> {
    let lines = report.to_lines().map_err(|error| invalid(&error))?;
    let members = lines.trim_end().trim_start_matches('{');
    let members = members.strip_suffix('}').unwrap_or(members);
    let text = format!("{{\"format\":{FORMAT},\n{members}");
    Ok(format!("{text}{DIGEST}{}\"}}\n", sha256(&text)))
}

/// Reads an envelope file.
///
/// # Errors
/// See [`EnvelopeError`].
pub fn open_envelope(text: &str) -> Result<Report<Row>, EnvelopeError> {
    #[derive(Deserialize)]
    struct Header {
        format: u32,
        sha256: String,
    }
    let header: Header = serde_json::from_str(text).map_err(|error| invalid(&error))?;
    if header.format != FORMAT {
        return Err(EnvelopeError::Version(header.format));
    }
    let sealed = text.rsplit_once(DIGEST).map(|(sealed, _)| sealed);
    if sealed.is_none_or(|sealed| sha256(sealed) != header.sha256) {
        return Err(EnvelopeError::Altered);
    }
    serde_json::from_str(text).map_err(|error| invalid(&error))
}

fn invalid(error: &serde_json::Error) -> EnvelopeError {
    EnvelopeError::Invalid(error.to_string())
}

/// The SHA-256 of a text, hexadecimal.
pub(crate) fn sha256(bytes: impl AsRef<[u8]>) -> String {
    let digest = digest(&SHA256, bytes.as_ref());
    let digits = digest.as_ref().iter().map(|byte| format!("{byte:02x}"));
    digits.collect()
}

#[cfg(test)]
mod tests {
    use myelin_metrics::Environment;
    use myelin_metrics::envelope::Claim;

    use super::*;

    fn report() -> Report<Row> {
        Report {
            experiment: "hop-cost".to_owned(),
            environment: Environment::default().with("effort", "quick"),
            rows: vec![Row::of("round trips").with("rtt_p50_us", 0.1 + 0.2)],
            claims: vec![Claim::figure_at_most("x", 1.0, 2.0)],
            ended_early: None,
        }
    }

    #[test]
    fn an_envelope_round_trips() {
        let cut = Report {
            ended_early: Some("cancelled".to_owned()),
            rows: Vec::new(),
            ..report()
        };
        for report in [report(), cut] {
            let text = seal_envelope(&report).unwrap();
            assert_eq!(open_envelope(&text).unwrap(), report);
            let json: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!(json["format"], FORMAT);
        }
    }

    #[test]
    fn altered_cut_and_other_envelopes_are_refused() {
        let text = seal_envelope(&report()).unwrap();
        let altered = text.replace("\"measured\":1.0", "\"measured\":0.5");
        assert_ne!(altered, text);
        assert_eq!(open_envelope(&altered), Err(EnvelopeError::Altered));
        let other = text.replace("\"format\":2", "\"format\":1");
        assert_eq!(open_envelope(&other), Err(EnvelopeError::Version(1)));
        let cut = &text[..text.len() / 2];
        for text in ["", "{}", "[]", "not JSON", cut] {
            let error = open_envelope(text).unwrap_err();
            assert!(
                matches!(error, EnvelopeError::Invalid(_)),
                "{text}: {error}"
            );
        }
        // A member after the digest is not sealed.
        let added = text.replace("\"}\n", "\",\"claims\":[]}\n");
        assert!(open_envelope(&added).is_err());
    }

    #[test]
    fn the_digest_is_sha256() {
        // FIPS 180-2, appendix B.1.
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256("abc"), expected);
    }
}
