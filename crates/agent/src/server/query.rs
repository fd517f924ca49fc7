//! The number in the query of a request.

use crate::api::ApiError;

/// Queries with a number: the subject, the form, and the meaning of the number.
pub(super) const AFTER_QUERY: [&str; 3] =
    ["events", "after=SERIAL", "the serial number of an event"];
pub(super) const LAST_QUERY: [&str; 3] = ["seconds", "last=COUNT", "the number of seconds"];

/// The number in a query, if the query has one.
pub(super) fn query_number(
    query: Option<&str>,
    [subject, form, meaning]: [&str; 3],
) -> Result<Option<u64>, ApiError> {
    let Some(query) = query else {
        return Ok(None);
    };
    let number = query.split_once('=').filter(|(key, _)| {
        let expected = form.split_once('=');
        expected.is_some_and(|(expected, _)| expected == *key)
    });
    let number = number.and_then(|(_, text)| text.parse().ok());
    number.map(Some).ok_or_else(|| {
        ApiError::usage(format!(
            "{subject}: the query `{query}` is not valid: write `{form}`, with {meaning}"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_without_its_number_is_refused() {
        assert_eq!(query_number(None, AFTER_QUERY).unwrap(), None);
        assert_eq!(query_number(Some("after=7"), AFTER_QUERY).unwrap(), Some(7));
        assert_eq!(query_number(Some("last=0"), LAST_QUERY).unwrap(), Some(0));
        for query in ["", "after=7", "last", "last=", "last=-1", "last=1&after=2"] {
            let error = query_number(Some(query), LAST_QUERY).unwrap_err();
            assert!(error.message.contains("last=COUNT"), "{query}: {error:?}");
        }
    }
}
