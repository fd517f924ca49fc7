//! The known word nearest to a misspelt one.

/// The candidate that `word` was most likely meant to be, if any comes near.
pub fn nearest<'c>(word: &str, candidates: &[&'c str]) -> Option<&'c str> {
    // Longer than any key; keeps the table small whatever the file holds.
    const LONGEST: usize = 40;
    if word.len() > LONGEST {
        return None;
    }
    let plain = |text: &str| text.replace(['-', '_', ' '], "").to_lowercase();
    let word = plain(word);
    candidates
        .iter()
        .map(|candidate| (unlikeness(&word, &plain(candidate)), *candidate))
        .min()
        .filter(|(distance, _)| *distance <= 1.max(word.chars().count() / 3))
        .map(|(_, candidate)| candidate)
}

/// Edits between two words (insert, delete, replace, swap neighbours), where a word that goes on from the other (`userspace`, `user`) is near.
fn unlikeness(a: &str, b: &str) -> usize {
    const SHORTEST: usize = 3;
    let shorter = a.len().min(b.len());
    let goes_on = shorter >= SHORTEST && (a.starts_with(b) || b.starts_with(a));
    if goes_on {
        1
    } else {
        strsim::osa_distance(a, b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_was_meant() {
        let keys = ["latency", "percentile", "rate", "rulesFile", "onFailure"];
        assert_eq!(nearest("latancy", &keys), Some("latency"));
        assert_eq!(nearest("percentil", &keys), Some("percentile"));
        assert_eq!(nearest("rules_file", &keys), Some("rulesFile"));
        assert_eq!(nearest("on-failure", &keys), Some("onFailure"));
        assert_eq!(nearest("userspace", &["kernel", "user"]), Some("user"));
        assert_eq!(nearest("raet", &keys), Some("rate"));
    }

    #[test]
    fn offers_nothing_far_off() {
        assert_eq!(nearest("color", &["latency", "rate"]), None);
        assert_eq!(nearest(&"x".repeat(10_000), &["latency"]), None);
        assert_eq!(nearest("", &["latency"]), None);
    }
}
