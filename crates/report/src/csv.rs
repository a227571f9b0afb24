//! Lines of comma-separated values, as in RFC 4180.

/// Joins fields into one line that ends with a newline, quoting where a field needs it.
pub fn csv_line<S: AsRef<str>>(fields: impl IntoIterator<Item = S>) -> String {
    let fields: Vec<String> = fields.into_iter().map(|field| quoted(field.as_ref())).collect();
    fields.join(",") + "\n"
}

fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_quoted_only_where_they_need_it() {
        assert_eq!(csv_line(["a", "1.5", ""]), "a,1.5,\n");
        assert_eq!(
            csv_line(["a,b", "say \"hi\"", "x\ny"]),
            "\"a,b\",\"say \"\"hi\"\"\",\"x\ny\"\n"
        );
    }
}
