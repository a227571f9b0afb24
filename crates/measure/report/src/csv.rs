//! Lines of comma-separated values (RFC 4180).

/// Joins fields into one line that ends with a newline; quotes the fields that need it.
pub fn csv_line<S: AsRef<str>>(fields: impl IntoIterator<Item = S>) -> String {
    let mut writer = csv_core::Writer::new();
    let mut line = Vec::new();
    let mut end = 0;
    for (at, field) in fields.into_iter().enumerate() {
        let field = field.as_ref().as_bytes();
        // Each byte may be a quote, which is written twice. Add a quote after the field before, a quote before this
        // one, and the comma between.
        line.resize(end + 2 * field.len() + 3, 0);
        if at > 0 {
            end += writer.delimiter(&mut line[end..]).1;
        }
        end += writer.field(field, &mut line[end..]).2;
    }
    // A line whose only field is empty gets quotes; otherwise it would be an empty line.
    line.resize(end + 3, 0);
    end += writer.terminator(&mut line[end..]).1;
    line.truncate(end);
    String::from_utf8(line).expect("quotes and commas between texts are text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_quoted_only_where_they_need_it() {
        assert_eq!(csv_line(["a", "1.5", ""]), "a,1.5,\n");
        assert_eq!(csv_line([""]), "\"\"\n");
        assert_eq!(csv_line(["\"".repeat(100), "\"".repeat(3)]).len(), 202 + 1 + 8 + 1);
        assert_eq!(
            csv_line(["a,b", "say \"hi\"", "x\ny"]),
            "\"a,b\",\"say \"\"hi\"\"\",\"x\ny\"\n"
        );
    }
}
