//! "Did you mean".

/// Prefix of all of Polyrail's variables, which does not help to identify a name.
const OF_VARIABLES: &str = "polyrail_";

/// Maximum length of compared names: longer ones can't be typing errors, and the cost of a comparison grows with the
/// length.
const LONGEST_NAME: usize = 64;

/// Returns the candidate that was probably meant by `name`, if any is near enough.
pub(crate) fn closest<'a>(
    name: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    if name.is_empty() || name.len() > LONGEST_NAME {
        return None;
    }
    // `Chunk-Bytes` is the right name in another spelling.
    let name = name.replace('-', "_").to_lowercase();
    let name = name.strip_prefix(OF_VARIABLES).unwrap_or(&name);
    let allowed_edits = (name.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .filter_map(|candidate| {
            let lower = candidate.to_lowercase();
            let lower = lower.strip_prefix(OF_VARIABLES).unwrap_or(&lower);
            let edits = strsim::damerau_levenshtein(name, lower);
            if edits <= allowed_edits {
                return Some((edits, candidate));
            }
            // A truncated name, like `window` for `window_chunks`, ranks after every misspelling.
            let is_cut_short = name.len() >= 3 && lower.starts_with(name);
            is_cut_short.then_some((LONGEST_NAME + edits, candidate))
        })
        .min_by_key(|&(edits, _)| edits)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 4] = ["chunk_bytes", "window_chunks", "tx_bindings", "rx_bindings"];

    #[test]
    fn a_misspelt_name_finds_its_neighbour() {
        assert_eq!(closest("chunk_byte", NAMES), Some("chunk_bytes"));
        assert_eq!(closest("chnuk_bytes", NAMES), Some("chunk_bytes"));
        assert_eq!(closest("CHUNK-BYTES", NAMES), Some("chunk_bytes"));
    }

    #[test]
    fn a_name_cut_short_finds_the_whole() {
        assert_eq!(closest("window", NAMES), Some("window_chunks"));
    }

    #[test]
    fn what_all_variables_begin_with_makes_none_of_them_alike() {
        let variables = ["POLYRAIL_AUTH", "POLYRAIL_CHUNK_BYTES"];
        assert_eq!(closest("POLYRAIL_NOSUCH", variables), None);
        assert_eq!(closest("POLYRAIL_CHNUK_BYTES", variables), Some("POLYRAIL_CHUNK_BYTES"));
    }

    #[test]
    fn a_name_like_none_of_them_finds_nothing() {
        assert_eq!(closest("colour", NAMES), None);
        assert_eq!(closest("", NAMES), None);
        assert_eq!(closest(&"chunk_bytes".repeat(1000), NAMES), None);
    }
}
