//! Reads the text of OpenMetrics that a process serves, adds labels, and writes it in both formats.
//!
//! The reader accepts what this crate writes, which is less than the format allows: no time stamps, no exemplars, every
//! family with its type. Anything else is refused.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use polyrail_config::steers;
use thiserror::Error;

/// Families with their samples.
#[derive(Debug, Default)]
pub(crate) struct Exposition {
    families: Vec<Described>,
    by_name: HashMap<String, usize>,
    /// Name and labels of each sample.
    seen: HashSet<String>,
}

#[derive(Debug)]
struct Described {
    name: String,
    kind: String,
    help: String,
    unit: String,
    /// Sample lines as written, without a line break.
    samples: Vec<String>,
}

/// Error for a text that no process of Polyrail serves.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("line {line}: {why}")]
pub(crate) struct Garbage {
    line: usize,
    why: &'static str,
}

const AGAIN: &str = "gives the same labels again";

impl Garbage {
    /// Whether another text has given the same labels.
    pub(crate) fn is_again(&self) -> bool {
        self.why == AGAIN
    }
}

/// The format of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    OpenMetrics,
    /// The older format of Prometheus.
    Classic,
}

impl Format {
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Classic => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// Returns the format for this `Accept`. A scraper that names OpenMetrics, and prefers it at least as much as plain
    /// text, gets it. All others get what a browser shows.
    pub(crate) fn accepted(accept: &str) -> Self {
        let quality = |wanted: &str| {
            let offers = accept.split(',').filter_map(|offer| {
                let mut parts = offer.split(';').map(str::trim);
                if !parts.next()?.eq_ignore_ascii_case(wanted) {
                    return None;
                }
                let mut quality = 1.0;
                for part in parts {
                    let (name, value) = part.split_once('=')?;
                    match name.trim().to_ascii_lowercase().as_str() {
                        "q" => quality = value.trim().parse::<f64>().ok()?,
                        "version" if wanted != PLAIN => {
                            let version = value.trim().trim_matches('"');
                            if !["1.0.0", "0.0.1"].contains(&version) {
                                return None;
                            }
                        }
                        _ => {}
                    }
                }
                Some(quality)
            });
            offers.fold(0.0, f64::max)
        };
        const PLAIN: &str = "text/plain";
        let open = quality("application/openmetrics-text");
        if open > 0.0 && open >= quality(PLAIN) { Self::OpenMetrics } else { Self::Classic }
    }
}

/// Content of a line.
pub(crate) enum Line<'a> {
    Meta { what: &'a str, name: &'a str, text: &'a str },
    Sample { name: &'a str, labels: &'a str, value: &'a str },
    End,
}

impl Exposition {
    /// Reads a text, and gives each sample these labels. The text may have only families that `may_have` allows. If it
    /// is refused, nothing is added.
    pub(crate) fn add(
        &mut self,
        text: &str,
        labels: &[(&str, &str)],
        may_have: fn(&str) -> bool,
    ) -> Result<(), Garbage> {
        let added = labels_text(labels);
        let mut read: Vec<Described> = Vec::new();
        let mut seen = HashSet::new();
        let mut has_ended = false;
        for (index, line) in text.split_terminator('\n').enumerate() {
            let bad = |why| Garbage { line: index + 1, why };
            if has_ended {
                return Err(bad("goes on after its end"));
            }
            match parse(line).map_err(bad)? {
                Line::End => has_ended = true,
                Line::Meta { name, .. } if !may_have(name) => {
                    return Err(bad("is of a family that others have"));
                }
                Line::Meta { what, name, text } => {
                    describe(&mut read, what, name, text).map_err(bad)?;
                }
                Line::Sample { name, labels: own, value } => {
                    let family = read.last_mut().ok_or(bad("has no family"))?;
                    if !family.has_sample(name) {
                        return Err(bad("is not of the family above"));
                    }
                    check_labels(own, labels).map_err(bad)?;
                    let comma = if own.is_empty() || added.is_empty() { "" } else { "," };
                    let series = match own.is_empty() && added.is_empty() {
                        true => name.to_owned(),
                        false => format!("{name}{{{added}{comma}{own}}}"),
                    };
                    family.samples.push(format!("{series} {value}"));
                    if self.seen.contains(&series) || !seen.insert(series) {
                        return Err(bad(AGAIN));
                    }
                }
            }
        }
        let whole = |why| Garbage { line: text.lines().count(), why };
        if !has_ended {
            return Err(whole("has no end"));
        }
        for family in &read {
            let known = self.by_name.get(&family.name).map(|index| &self.families[*index]);
            if family.kind.is_empty() {
                return Err(whole("has a family without a type"));
            }
            if known.is_some_and(|known| known.kind != family.kind || known.unit != family.unit) {
                return Err(whole("has another type for a family than others"));
            }
        }
        self.seen.extend(seen);
        for family in read {
            match self.by_name.get(&family.name) {
                Some(index) => self.families[*index].samples.extend(family.samples),
                None => {
                    self.by_name.insert(family.name.clone(), self.families.len());
                    self.families.push(family);
                }
            }
        }
        Ok(())
    }

    pub(crate) fn text(&self, format: Format) -> String {
        let samples = self.families.iter().flat_map(|family| &family.samples);
        let mut text = String::with_capacity(samples.map(|sample| sample.len() + 1).sum());
        for family in &self.families {
            family.write(&mut text, format);
        }
        if format == Format::OpenMetrics {
            text.push_str("# EOF\n");
        }
        text
    }
}

impl Described {
    /// Suffixes of its samples' names.
    fn suffixes(&self) -> &'static [&'static str] {
        match self.kind.as_str() {
            "counter" => &["_total"],
            "gauge" => &[""],
            "histogram" => &["_bucket", "_sum", "_count"],
            "info" => &["_info"],
            _ => &[],
        }
    }

    fn has_sample(&self, name: &str) -> bool {
        let suffix = name.strip_prefix(self.name.as_str());
        suffix.is_some_and(|suffix| self.suffixes().contains(&suffix))
    }

    fn write(&self, text: &mut String, format: Format) {
        let (name, help) = (&self.name, &self.help);
        // Before OpenMetrics, a family had the name of its samples.
        let (suffix, kind) = match (format, self.kind.as_str()) {
            (Format::Classic, "counter") => ("_total", "counter"),
            (Format::Classic, "info") => ("_info", "gauge"),
            (_, kind) => ("", kind),
        };
        let _ = writeln!(text, "# HELP {name}{suffix} {help}\n# TYPE {name}{suffix} {kind}");
        if format == Format::OpenMetrics && !self.unit.is_empty() {
            let _ = writeln!(text, "# UNIT {name} {}", self.unit);
        }
        for sample in &self.samples {
            text.push_str(sample);
            text.push('\n');
        }
    }
}

fn describe(
    read: &mut Vec<Described>,
    what: &str,
    name: &str,
    text: &str,
) -> Result<(), &'static str> {
    if read.last().is_none_or(|family| family.name != name) {
        if read.iter().any(|family| family.name == name) {
            return Err("describes a family again");
        }
        let (kind, help, unit) = (String::new(), String::new(), String::new());
        read.push(Described { name: name.to_owned(), kind, help, unit, samples: Vec::new() });
    }
    let Some(family) = read.last_mut().filter(|family| family.samples.is_empty()) else {
        return Err("describes a family after its samples");
    };
    let field = match what {
        "HELP" => &mut family.help,
        // Otherwise Prometheus would refuse the whole text.
        "UNIT" if !name.strip_suffix(text).is_some_and(|rest| rest.ends_with('_')) => {
            return Err("has a unit that its name does not end in");
        }
        "UNIT" => &mut family.unit,
        "TYPE" => {
            family.kind = text.to_owned();
            let is_known = !family.suffixes().is_empty();
            return if is_known { Ok(()) } else { Err("has a type that is not known here") };
        }
        _ => return Err("describes something unknown"),
    };
    *field = text.to_owned();
    Ok(())
}

pub(crate) fn parse(line: &str) -> Result<Line<'_>, &'static str> {
    if line == "# EOF" {
        return Ok(Line::End);
    }
    if let Some(meta) = line.strip_prefix("# ") {
        let mut parts = meta.splitn(3, ' ');
        let (Some(what), Some(name), Some(text)) = (parts.next(), parts.next(), parts.next())
        else {
            return Err("is no description");
        };
        if !is_name(name) || text.contains(|one: char| steers(one) || "\\\"".contains(one)) {
            return Err("has a name or text that is not valid");
        }
        return Ok(Line::Meta { what, name, text });
    }
    let (name, labels, value) = match line.split_once('{') {
        // A value of a label may contain a brace; the part after the last one has none.
        Some((name, rest)) => {
            let (labels, value) = rest.rsplit_once("} ").ok_or("has labels without an end")?;
            (name, labels, value)
        }
        None => {
            let (name, value) = line.split_once(' ').ok_or("has no value")?;
            (name, "", value)
        }
    };
    if !is_name(name) {
        return Err("has a name that is not valid");
    }
    let is_plain = value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    // Prometheus refuses the whole text for a value that is too large for a number.
    let is_number = value.parse().is_ok_and(|number: f64| number.is_finite());
    if !is_plain || !is_number && !["+Inf", "-Inf", "NaN"].contains(&value) {
        return Err("has a value that is no number");
    }
    Ok(Line::Sample { name, labels, value })
}

/// Maximum length of a label's value.
const LONGEST_VALUE_BYTES: usize = 1024;
/// Maximum length of values that an engine writes, in characters, each of which has at most 6 bytes when escaped.
pub(crate) const LONGEST_OWN_VALUE: usize = 160;
const _: () = assert!(6 * LONGEST_OWN_VALUE + 3 < LONGEST_VALUE_BYTES);

/// Refuses invalid labels, those that are `given` already, and values that no engine writes: they would steer a
/// terminal, or begin their own line there.
fn check_labels(text: &str, given: &[(&str, &str)]) -> Result<(), &'static str> {
    let labels = labels(text)?;
    for (index, (name, value)) in labels.iter().enumerate() {
        if value.contains(steers) || value.len() > LONGEST_VALUE_BYTES {
            return Err("has a label that steers a terminal, or is too long");
        }
        let is_valid = is_name(name) && !name.contains(':') && !name.starts_with("__");
        let mut others = labels[..index].iter().map(|(other, _)| other.as_str());
        let is_given = given.iter().any(|(other, _)| other == name);
        if !is_valid || is_given || others.any(|other| other == name) {
            return Err("has a label that is not valid, or given twice");
        }
    }
    Ok(())
}

/// Labels of a sample with their values.
pub(crate) fn labels(mut text: &str) -> Result<Vec<(String, String)>, &'static str> {
    let mut read = Vec::new();
    while !text.is_empty() {
        let (name, rest) = text.split_once("=\"").ok_or("has a label without a value")?;
        let end = end_of_value(rest).ok_or("has a label's value without an end")?;
        read.push((name.to_owned(), unescaped(&rest[..end])));
        text = &rest[end + 1..];
        if !text.is_empty() {
            text = text.strip_prefix(',').ok_or("has no comma between labels")?;
            if text.is_empty() {
                return Err("has nothing after a comma");
            }
        }
    }
    Ok(read)
}

/// Undoes the escaping of a value.
fn unescaped(text: &str) -> String {
    let mut value = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(one) = rest.next() {
        value.push(match one {
            '\\' => match rest.next() {
                Some('n') => '\n',
                Some(escaped) => escaped,
                None => '\\',
            },
            one => one,
        });
    }
    value
}

/// Position of the closing quote.
fn end_of_value(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    for (place, byte) in text.bytes().enumerate() {
        match (is_escaped, byte) {
            (true, b'\\' | b'"' | b'n') => is_escaped = false,
            (true, _) => return None,
            (false, b'\\') => is_escaped = true,
            (false, b'"') => return Some(place),
            (false, _) => {}
        }
    }
    None
}

fn is_name(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_alphabetic() || b"_:".contains(&first))
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"_:".contains(&byte))
}

fn labels_text(labels: &[(&str, &str)]) -> String {
    let one = |(name, value): &(&str, &str)| {
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        format!("{name}=\"{value}\"")
    };
    labels.iter().map(one).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: &str = "\
# HELP polyrail_rail_sent_bytes Payload sent.
# TYPE polyrail_rail_sent_bytes counter
# UNIT polyrail_rail_sent_bytes bytes
polyrail_rail_sent_bytes_total{engine=\"a}\\\"{ \",rail=\"eth1\"} 5
# HELP polyrail_operations Posted.
# TYPE polyrail_operations gauge
polyrail_operations 2.5
# HELP polyrail_engine About.
# TYPE polyrail_engine info
polyrail_engine_info{version=\"1\"} 1
# EOF
";

    fn any(_: &str) -> bool {
        true
    }

    fn added(text: &str) -> Result<(), &'static str> {
        let may_have = |name: &str| name != "up";
        let read = Exposition::default().add(text, &[("pid", "1")], may_have);
        read.map_err(|garbage| garbage.why)
    }

    #[test]
    fn two_processes_are_merged_by_family() {
        let mut all = Exposition::default();
        all.add(TEXT, &[("pid", "1")], any).unwrap();
        all.add(TEXT, &[("pid", "2")], any).unwrap();
        let text = all.text(Format::OpenMetrics);
        assert_eq!(text.matches("# TYPE polyrail_rail_sent_bytes counter\n").count(), 1);
        let first =
            "polyrail_rail_sent_bytes_total{pid=\"1\",engine=\"a}\\\"{ \",rail=\"eth1\"} 5\n";
        let both = format!("{first}{}", first.replace("pid=\"1\"", "pid=\"2\""));
        assert!(text.contains(&both), "{text}");
        assert!(text.contains("polyrail_operations{pid=\"2\"} 2.5\n"), "{text}");
        assert!(text.ends_with("\n# EOF\n"));
        assert_eq!(all.add(TEXT, &[("pid", "2")], any).unwrap_err().line, 4);
        assert_eq!(all.text(Format::OpenMetrics), text, "what was refused was added");
    }

    #[test]
    fn the_classic_format_names_families_after_their_samples() {
        let mut all = Exposition::default();
        all.add(TEXT, &[], any).unwrap();
        assert_eq!(all.text(Format::OpenMetrics), TEXT);
        let text = all.text(Format::Classic);
        assert!(text.contains("# TYPE polyrail_rail_sent_bytes_total counter\n"), "{text}");
        assert!(text.contains("# TYPE polyrail_engine_info gauge\n"), "{text}");
        assert!(!text.contains("# UNIT") && !text.contains("# EOF"), "{text}");
    }

    #[test]
    fn what_no_process_of_polyrail_says_is_refused() {
        let family = "# TYPE a gauge\n";
        for (text, why) in [
            ("", "has no end"),
            ("a 1\n# EOF\n", "has no family"),
            ("# TYPE a gauge\na 1\n", "has no end"),
            ("# EOF\n# EOF\n", "goes on after its end"),
            ("# TYPE a gauge\nb 1\n# EOF\n", "is not of the family above"),
            ("# TYPE a counter\na 1\n# EOF\n", "is not of the family above"),
            ("# TYPE a teapot\n# EOF\n", "has a type that is not known here"),
            ("# HELP a x\n# EOF\n", "has a family without a type"),
            ("# NOTE a x\n# EOF\n", "describes something unknown"),
            ("# TYPE up gauge\n# EOF\n", "is of a family that others have"),
            ("# UNIT a bytes\n# EOF\n", "has a unit that its name does not end in"),
            ("# HELP a \\q\n# EOF\n", "has a name or text that is not valid"),
            ("a 1e999\n", "has a value that is no number"),
            ("a{__name__=\"b\"} 1\n", "has a label that is not valid, or given twice"),
            ("<html>\n", "has no value"),
            ("a one\n", "has a value that is no number"),
            ("a 1 1700000000\n", "has a value that is no number"),
            ("a{x=\"1\"\n", "has labels without an end"),
            ("a{x=1} 1\n", "has a label without a value"),
            ("a{x=\"1\",} 1\n", "has nothing after a comma"),
            ("a{x=\"1\"y=\"2\"} 1\n", "has no comma between labels"),
            ("a{x=\"1\",x=\"2\"} 1\n", "has a label that is not valid, or given twice"),
            ("a{pid=\"9\"} 1\n", "has a label that is not valid, or given twice"),
            ("a{x=\"\\q\"} 1\n", "has a label's value without an end"),
            ("a 1\na 1\n", "gives the same labels again"),
            ("a{x=\"y\\nz\"} 1\n", "has a label that steers a terminal, or is too long"),
            ("a{x=\"\u{1b}[2J\"} 1\n", "has a label that steers a terminal, or is too long"),
            ("a{x=\"\u{202e}\"} 1\n", "has a label that steers a terminal, or is too long"),
        ] {
            let is_whole = text.is_empty() || text.contains('#');
            let text = if is_whole { text.to_owned() } else { format!("{family}{text}") };
            assert_eq!(added(&text), Err(why), "{text}");
        }
    }

    #[test]
    fn a_scraper_gets_the_format_that_it_likes_best() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,\
             application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.1";
        for (accept, format) in [
            (prometheus, Format::OpenMetrics),
            ("application/openmetrics-text; version=\"1.0.0\"", Format::OpenMetrics),
            ("", Format::Classic),
            ("*/*", Format::Classic),
            ("text/plain;version=0.0.4;q=0.5,application/openmetrics-text;q=0.2", Format::Classic),
            ("application/openmetrics-text;version=7", Format::Classic),
            ("application/openmetrics-text;q=0", Format::Classic),
        ] {
            assert_eq!(Format::accepted(accept), format, "{accept}");
        }
    }

    proptest! {
        #[test]
        fn no_text_breaks_the_reader(text in "(# (TYPE|HELP|EOF)?|[a-z_{}\"=,\\\\ 0-9\n]){0,80}") {
            let mut all = Exposition::default();
            let is_taken = all.add(&text, &[("pid", "1")], any).is_ok();
            let written = all.text(Format::OpenMetrics);
            if is_taken {
                prop_assert!(Exposition::default().add(&written, &[], any).is_ok(), "{written}");
            } else {
                prop_assert_eq!(written, "# EOF\n");
            }
        }
    }
}
