//! The place of a cell's figure in the output of its command.

use regex_lite::Regex;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A place in JSON, or a pattern.
#[derive(Clone, Debug)]
pub struct Figure {
    text: String,
    pattern: Option<Regex>,
}

impl Figure {
    /// Returns the place of the rate of the first size of `polyrail bench`.
    pub fn of_bench() -> Self {
        Self { text: "/results/0/gb_per_s".to_owned(), pattern: None }
    }

    /// Parses a JSON pointer, which begins with `/`, or a pattern with one group.
    ///
    /// # Errors
    /// The fault, as a phrase that follows the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.starts_with('/') {
            return Ok(Self { text: text.to_owned(), pattern: None });
        }
        let pattern = Regex::new(text).map_err(|error| {
            format!("is no pattern ({error}); allowed: a JSON pointer such as /rate, or a pattern")
        })?;
        match pattern.captures_len() {
            2 => Ok(Self { text: text.to_owned(), pattern: Some(pattern) }),
            groups => Err(format!(
                "has {} groups; allowed: a pattern with one, around the number, such as 'rate: ([0-9.]+)'",
                groups - 1
            )),
        }
    }

    /// Returns the place as it was given.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Finds the figure in this output. It must be above zero, since effects are ratios. If a pattern matches several
    /// times, the last match counts.
    ///
    /// # Errors
    /// The fault, as a sentence.
    pub fn find(&self, output: &str) -> Result<f64, String> {
        let number = match &self.pattern {
            None => self.in_json(output)?,
            Some(pattern) => {
                let found = pattern.captures_iter(output).last().and_then(|found| found.get(1));
                let text = found
                    .ok_or_else(|| format!("nothing that it prints matches `{}`", self.text))?;
                let number = text.as_str().trim().parse::<f64>();
                number.map_err(|_| {
                    format!("`{}` at `{}` is no number", cut(text.as_str()), self.text)
                })?
            }
        };
        match number.is_finite() && number > 0.0 {
            true => Ok(number),
            false => Err(format!("the figure at `{}` is {number}; it must be above 0", self.text)),
        }
    }

    fn in_json(&self, output: &str) -> Result<f64, String> {
        let document: serde_json::Value = serde_json::from_str(output)
            .map_err(|error| format!("what it prints is no JSON: {error}"))?;
        let value = document.pointer(&self.text);
        let value = value
            .ok_or_else(|| format!("the JSON that it prints has nothing at `{}`", self.text))?;
        value
            .as_f64()
            .ok_or_else(|| format!("`{}` at `{}` is no number", cut(&value.to_string()), self.text))
    }
}

/// Returns the unit of the figure at a place, from the names in it: `latency_us` gives the unit of its percentiles,
/// too.
pub fn unit_of(place: &str) -> Option<&'static str> {
    const UNITS: [(&str, &str); 4] =
        [("gb_per_s", "GB/s"), ("_ns", "ns"), ("_us", "µs"), ("_ms", "ms")];
    let of = |name: &str| UNITS.iter().find(|(end, _)| name.ends_with(end)).map(|(_, unit)| *unit);
    place.strip_prefix('/')?.rsplit('/').find_map(of)
}

impl PartialEq for Figure {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Serialize for Figure {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for Figure {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        Self::parse(&text).map_err(|why| D::Error::custom(format!("`{text}` {why}")))
    }
}

fn cut(text: &str) -> String {
    polyrail_yaml::excerpt(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_found_in_json_and_in_text() {
        let bench = r#"{"results": [{"gb_per_s": 3.5}]}"#;
        assert_eq!(Figure::of_bench().find(bench), Ok(3.5));
        let pattern = Figure::parse("rate: ([0-9.]+) GB").unwrap();
        assert_eq!(pattern.find("rate: 1.5 GB\nrate: 2.25 GB\n"), Ok(2.25));
    }

    #[test]
    fn a_unit_is_told_where_the_name_has_one() {
        let places =
            ["/results/0/gb_per_s", "/results/0/latency_us/p50", "/rate", "rate_us: ([0-9]+)"];
        assert_eq!(places.map(unit_of), [Some("GB/s"), Some("µs"), None, None]);
    }

    #[test]
    fn what_is_no_figure_is_refused_with_the_place() {
        let at =
            |figure: &str, output: &str| Figure::parse(figure).unwrap().find(output).unwrap_err();
        assert!(at("/a", "x").contains("no JSON"));
        assert!(at("/a", r#"{"b": 1}"#).contains("nothing at `/a`"));
        assert!(at("/a", r#"{"a": "x"}"#).contains("is no number"));
        assert!(at("/a", r#"{"a": 0}"#).contains("above 0"));
        assert!(at("a(.)", "b").contains("nothing that it prints matches"));
        assert!(at("a(.)", "ab").contains("`b` at `a(.)` is no number"));
        assert!(Figure::parse("rate").unwrap_err().contains("has 0 groups"));
        assert!(Figure::parse("(").unwrap_err().contains("no pattern"));
    }
}
