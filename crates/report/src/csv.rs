//! Lines of comma-separated values, as in RFC 4180.

/// Joins fields into one line that ends with a newline, quoting where a field needs it.
pub fn csv_line<S: AsRef<str>>(fields: impl IntoIterator<Item = S>) -> String {
    let mut writer = csv::WriterBuilder::new().buffer_capacity(LINE_BYTES).from_writer(Vec::new());
    for field in fields {
        writer.write_field(field.as_ref()).expect("a vector takes all");
    }
    writer.write_record(None::<&[u8]>).expect("a vector takes all");
    let line = writer.into_inner().expect("a vector takes all");
    String::from_utf8(line).expect("quotes and commas between texts are text")
}

/// Most lines are shorter.
const LINE_BYTES: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_quoted_only_where_they_need_it() {
        assert_eq!(csv_line(["a", "1.5", ""]), "a,1.5,\n");
        assert_eq!(csv_line(["x".repeat(2000)]).len(), 2001);
        assert_eq!(
            csv_line(["a,b", "say \"hi\"", "x\ny"]),
            "\"a,b\",\"say \"\"hi\"\"\",\"x\ny\"\n"
        );
    }
}
