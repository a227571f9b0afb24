//! Rewrites errors of the JSON and YAML readers on wrong fields for people: the value found, and the allowed values.

use polyrail_yaml::excerpt;

/// Rewrites an error message of the reader, which names types of this program and no ranges.
pub(crate) fn told(message: &str) -> String {
    // The position is reported separately.
    let message = message.rsplit_once(" at line ").map_or(message, |(message, _)| message);
    if let Some(name) = message.strip_prefix("missing field ") {
        return format!("lacks {name}; allowed: {name}, once");
    }
    if let Some(name) = message.strip_prefix("duplicate field ") {
        return format!("has {name} twice; allowed: once");
    }
    let Some((found, expected)) = message.rsplit_once(", expected ") else {
        return format!("{}; allowed: what docs/profile-format.md describes", excerpt(message));
    };
    let found = match found.strip_prefix("unknown field ") {
        Some(name) => format!("has {}, which does not exist", excerpt(name)),
        None => value(found),
    };
    format!("{found}; allowed: {}", allowed(expected))
}

/// Returns the value without its type; for other than a single value, describes its type.
fn value(found: &str) -> String {
    let typed = ["invalid type: ", "invalid value: ", "unknown variant "];
    let found = typed.iter().find_map(|before| found.strip_prefix(before)).unwrap_or(found);
    let between = |quote: char| {
        let (first, last) = (found.find(quote)?, found.rfind(quote)?);
        found.get(first + 1..last)
    };
    match found {
        "null" | "unit value" => "is empty".to_owned(),
        "map" => "has fields of its own".to_owned(),
        "sequence" => "is a list".to_owned(),
        _ => {
            let quote = if found.starts_with("string ") { '"' } else { '`' };
            format!("`{}`", excerpt(between(quote).unwrap_or(found)))
        }
    }
}

fn allowed(expected: &str) -> String {
    let up_to = |most: u64| format!("a whole number, 0 to {most}");
    match expected {
        "u8" => up_to(u8::MAX.into()),
        "u16" => up_to(u16::MAX.into()),
        "u32" => up_to(u32::MAX.into()),
        "u64" | "usize" => up_to(u64::MAX),
        "i32" | "i64" => "a whole number".to_owned(),
        "f32" | "f64" => "a number".to_owned(),
        "a boolean" => "true, false".to_owned(),
        "a string" => "a text".to_owned(),
        "a sequence" => "a list".to_owned(),
        "string or map" | "unit" => "a word that docs/profile-format.md lists".to_owned(),
        "a map" => "fields, each `name: value`".to_owned(),
        _ if expected.starts_with("struct ") => "fields, each `name: value`".to_owned(),
        names => names.replace("one of ", "").replace(" or ", ", ").replace('`', ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_become_values_and_ranges() {
        for (message, expected) in [
            ("missing field `rank`", "lacks `rank`; allowed: `rank`, once"),
            ("duplicate field `rank`", "has `rank` twice; allowed: once"),
            (
                "invalid type: string \"x\", expected u32",
                "`x`; allowed: a whole number, 0 to 4294967295",
            ),
            ("invalid value: integer `-1`, expected u8", "`-1`; allowed: a whole number, 0 to 255"),
            ("invalid type: floating point `1.5`, expected i64", "`1.5`; allowed: a whole number"),
            ("invalid type: boolean `true`, expected f64", "`true`; allowed: a number"),
            ("invalid type: null, expected a string", "is empty; allowed: a text"),
            ("invalid type: map, expected a sequence", "has fields of its own; allowed: a list"),
            (
                "invalid type: sequence, expected struct Run",
                "is a list; allowed: fields, each `name: value`",
            ),
            ("unknown variant `x`, expected `gpu` or `host`", "`x`; allowed: gpu, host"),
            (
                "unknown field `y`, expected one of `id`, `src`",
                "has `y`, which does not exist; allowed: id, src",
            ),
            (
                "invalid type: string \"a, expected b\", expected a boolean",
                "`a, expected b`; allowed: true, false",
            ),
        ] {
            assert_eq!(told(message), expected, "{message}");
        }
    }
}
