//! Reads the text that a process serves, sample by sample, for programs that show it.

use crate::exposition::{Exposition, Garbage, Line, labels, parse};

/// One sample of a metric.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// The full name, as in `polyrail_rail_sent_bytes_total`.
    pub name: String,
    /// Labels and their values.
    pub labels: Vec<(String, String)>,
    /// The value.
    pub value: f64,
}

impl Figure {
    /// The value of a label. Empty if there is no such label.
    pub fn label(&self, name: &str) -> &str {
        let found = self.labels.iter().find(|(known, _)| known == name);
        found.map_or("", |(_, value)| value)
    }
}

/// Returns all samples of a text that [`Exposition`] accepts.
pub(crate) fn read(text: &str) -> Result<Vec<Figure>, Garbage> {
    Exposition::default().add(text, &[], |_| true)?;
    let figure = |line| match parse(line) {
        Ok(Line::Sample { name, labels: own, value }) => {
            let (name, labels) = (name.to_owned(), labels(own).ok()?);
            Some(Figure { name, labels, value: value.parse().ok()? })
        }
        _ => None,
    };
    Ok(text.lines().filter_map(figure).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sample_has_its_labels_as_they_were_before_they_were_written() {
        let text = "# HELP a_bytes A.\n# TYPE a_bytes counter\n# UNIT a_bytes bytes\n\
            a_bytes_total{engine=\"a}\\\"{ \\\\\",rail=\"eth1\"} 5\n\
            # HELP b B.\n# TYPE b gauge\nb 2.5\n# EOF\n";
        let figures = read(text).unwrap();
        assert_eq!(figures.len(), 2);
        assert_eq!((&*figures[0].name, figures[0].value), ("a_bytes_total", 5.0));
        assert_eq!((figures[0].label("engine"), figures[0].label("rail")), ("a}\"{ \\", "eth1"));
        assert_eq!((figures[1].value, figures[1].label("rail")), (2.5, ""));
        assert!(read("b 2.5\n# EOF\n").is_err());
    }
}
