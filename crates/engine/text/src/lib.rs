//! Makes text from other programs and machines safe to show.
//!
//! Names and messages come from peers, devices, files and the environment, and any of them may hold escape
//! sequences of a terminal, line breaks, characters that reverse the direction of writing, or invisible ones that make two names look alike. [`steers`] decides which
//! characters these are, for every place that refuses or escapes them.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

use std::borrow::Cow;

/// Whether a character steers the terminal or the layout that shows it: control characters, the ends of lines and paragraphs of
/// Unicode, the characters that change the direction of writing, and those that show nothing.
///
/// The source for what shows nothing is Unicode's property `Default_Ignorable_Code_Point` (DerivedCoreProperties.txt of
/// Unicode 16). Two are added: the marks of annotations, U+FFF9 to U+FFFB, and the empty pattern of Braille, U+2800, which
/// is blank and counts as no space.
pub fn steers(one: char) -> bool {
    let controls = matches!(one, '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}');
    let ends_line = matches!(one, '\u{2028}' | '\u{2029}');
    let turns_writing = matches!(one, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    controls
        || ends_line
        || turns_writing
        || is_ignorable(one)
        || matches!(one, '\u{2800}' | '\u{fff9}'..='\u{fffb}')
}

/// Unicode's `Default_Ignorable_Code_Point`.
fn is_ignorable(one: char) -> bool {
    matches!(
        one,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fff8}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

/// Escapes the characters that [`steers`] finds, but those in `keep`.
///
/// The form is that of JSON (`\u001b`), so the result stays valid where the text is JSON.
pub fn harmless(text: &str, keep: &[char]) -> String {
    let mut shown = String::with_capacity(text.len());
    for one in text.chars() {
        match steers(one) && !keep.contains(&one) {
            true => one
                .encode_utf16(&mut [0; 2])
                .iter()
                .for_each(|unit| shown.push_str(&format!("\\u{unit:04x}"))),
            false => shown.push(one),
        }
    }
    shown
}

/// The first `most` characters of a text, in one line and [`harmless`].
pub fn shortened(text: &str, most: usize) -> String {
    let beginning: String = text.chars().take(most).collect();
    let dots = if beginning.len() < text.len() { "..." } else { "" };
    harmless(&beginning, &[]) + dots
}

/// The text as content or attribute of an element of HTML or XML. XML can't hold control characters, even escaped: U+FFFD
/// takes the place of what [`steers`].
pub fn markup(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for one in text.chars() {
        match one {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            one if steers(one) => safe.push('\u{fffd}'),
            one => safe.push(one),
        }
    }
    safe
}

/// The text as a line of Markdown that shows it as it is, also as a cell of a table: it begins no element of HTML, no link, no
/// list and no heading. What [`steers`] becomes U+FFFD, as in [`markup`].
pub fn markdown_line(text: &str) -> String {
    let text = text.trim_start();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let mut safe = String::with_capacity(text.len());
    for (at, one) in text.char_indices() {
        match one {
            // Not every reader of Markdown knows `\<`.
            '&' | '<' | '>' | '"' => safe.push_str(&markup(one.encode_utf8(&mut [0; 4]))),
            '|' | '*' | '_' | '`' | '[' | ']' | '\\' | '#' | '~' | '$' | '@' => {
                safe.extend(['\\', one])
            }
            // At the beginning it makes a list or a rule.
            '-' | '+' if at == 0 && !text[1..].starts_with(|next: char| next.is_alphanumeric()) => {
                safe.extend(['\\', one]);
            }
            '.' | ')' if at == digits && at > 0 => safe.extend(['\\', one]),
            // Bare addresses become links.
            ':' if text[at..].starts_with("://") => safe.push_str("\\:"),
            '.' if text[..at].to_ascii_lowercase().ends_with("www") => safe.push_str("\\."),
            one if steers(one) => safe.push('\u{fffd}'),
            one => safe.push(one),
        }
    }
    safe
}

/// JSON as content of a `<script>` element, which no text in it can end.
pub fn json_in_markup(json: &str) -> String {
    json.replace('<', "\\u003c")
}

/// The text as a cell of a spreadsheet, in one line. A spreadsheet would compute a cell that begins as a formula does; an
/// apostrophe in front keeps it text. Numbers stay as they are.
pub fn cell(text: &str) -> Cow<'_, str> {
    let is_formula = text.starts_with(['=', '+', '-', '@']) && text.parse::<f64>().is_err();
    match text.contains(steers) || is_formula {
        false => Cow::Borrowed(text),
        true => Cow::Owned(format!("{}{}", if is_formula { "'" } else { "" }, harmless(text, &[]))),
    }
}

/// Implements `Debug` for an error as its text, with a line of help if there is one: `main() -> Result<…>`, `unwrap` and
/// `expect` print that form. With the variants of an enum it gets a method `variant` as well.
///
/// ```
/// use std::fmt;
///
/// enum Lost {
///     Cut { bytes: u64 },
/// }
/// impl fmt::Display for Lost {
///     fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
///         let Self::Cut { bytes } = self;
///         write!(f, "the line is cut after {bytes} bytes")
///     }
/// }
/// polyrail_text::debug_as_text!(Lost { Cut }, |_| Some("splice it".to_owned()));
///
/// let lost = Lost::Cut { bytes: 7 };
/// assert_eq!(format!("{lost:?}"), "the line is cut after 7 bytes\nhelp: splice it");
/// assert_eq!(lost.variant(), "Cut");
/// ```
#[macro_export]
macro_rules! debug_as_text {
    ($error:ident { $($variant:ident),+ $(,)? }, $help:expr) => {
        impl $error {
            /// The name of the variant: for counters, and for languages that know no types of Rust.
            pub fn variant(&self) -> &'static str {
                match self {
                    $(Self::$variant { .. } => ::std::stringify!($variant),)+
                }
            }
        }
        $crate::debug_as_text!($error, $help);
    };
    ($error:ty, $help:expr) => {
        impl ::std::fmt::Debug for $error {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                let help: fn(&Self) -> ::std::option::Option<::std::string::String> = $help;
                ::std::fmt::Display::fmt(self, f)?;
                help(self).map_or(::std::result::Result::Ok(()), |help| ::std::write!(f, "\nhelp: {help}"))
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_is_one_line_that_says_where_it_was_cut() {
        assert_eq!(shortened("a\u{1b}b", 3), "a\\u001bb");
        assert_eq!(shortened("a\nbc", 3), "a\\u000ab...");
    }

    #[test]
    fn a_character_that_steers_a_terminal_is_escaped_and_the_rest_stays() {
        assert_eq!(harmless("Wörter × 2\n\tend", &['\n', '\t']), "Wörter × 2\n\tend");
        assert_eq!(harmless("a\nb\0", &[]), "a\\u000ab\\u0000");
        assert_eq!(harmless("\u{1b}]0;x\u{7}\u{9b}2J", &['\n']), "\\u001b]0;x\\u0007\\u009b2J");
        assert_eq!(harmless("a\u{202e}b\u{2067}\u{61c}", &[]), "a\\u202eb\\u2067\\u061c");
        assert_eq!(harmless("a\u{2028}b\u{85}", &[]), "a\\u2028b\\u0085");
        assert_eq!(harmless("a\u{200b}b\u{feff}\u{ad}", &[]), "a\\u200bb\\ufeff\\u00ad");
        assert_eq!(harmless("\u{e0001}", &[]), "\\udb40\\udc01");
    }

    #[test]
    fn what_shows_nothing_steers_and_what_stands_beside_it_does_not() {
        let ranges = [
            (0x34f, 0x34f),
            (0x115f, 0x1160),
            (0x17b4, 0x17b5),
            (0x180b, 0x180f),
            (0x200b, 0x200f),
            (0x2060, 0x206f),
            (0x2800, 0x2800),
            (0x3164, 0x3164),
            (0xfe00, 0xfe0f),
            (0xfeff, 0xfeff),
            (0xffa0, 0xffa0),
            (0xfff0, 0xfffb),
            (0x1bca0, 0x1bca3),
            (0x1d173, 0x1d17a),
            (0xe0000, 0xe0fff),
        ];
        for (first, last) in ranges {
            let all = (first..=last).filter_map(char::from_u32);
            assert_eq!(all.filter(|one| !steers(*one)).collect::<Vec<_>>(), [], "{first:x}");
            for beside in [first - 1, last + 1].into_iter().filter_map(char::from_u32) {
                assert!(!steers(beside), "{beside:?}");
            }
        }
    }

    #[test]
    fn markup_has_no_element_attribute_or_control_character_of_the_text() {
        assert_eq!(
            markup("</script><b a=\"'\">&\u{1b}\n"),
            "&lt;/script&gt;&lt;b a=&quot;&#39;&quot;&gt;&amp;\u{fffd}\u{fffd}"
        );
        assert_eq!(json_in_markup("[\"</script>\"]"), "[\"\\u003c/script>\"]");
    }

    #[test]
    fn a_line_of_markdown_shows_the_text_and_nothing_that_it_could_mean() {
        for (text, shown) in [
            ("a|b\n*c*\u{1b}[2J", "a\\|b\u{fffd}\\*c\\*\u{fffd}\\[2J"),
            (
                "<img src=x onerror=\"f()\">&lt;",
                "&lt;img src=x onerror=&quot;f()&quot;&gt;&amp;lt;",
            ),
            ("`[x](http://x)`", "\\`\\[x\\](http\\://x)\\`"),
            ("see WWW.x.org, @me", "see WWW\\.x.org, \\@me"),
            ("  - x", "\\- x"),
            ("12. x 1.5", "12\\. x 1.5"),
            ("# x ~~y~~ $z$", "\\# x \\~\\~y\\~\\~ \\$z\\$"),
            ("---", "\\---"),
            ("+20.0 %, mtu=9000, -1.5 %: a-b", "+20.0 %, mtu=9000, -1.5 %: a-b"),
        ] {
            assert_eq!(markdown_line(text), shown);
        }
    }

    #[test]
    fn a_cell_is_never_a_formula_and_a_number_stays_one() {
        for formula in ["=cmd|' /C calc'!A0", "+1+1", "-1+1", "@SUM(A1)", "-"] {
            assert_eq!(cell(formula), format!("'{formula}"));
        }
        for plain in ["-1.5", "+3", "1e-3", "", "eth0=0.5", "a\"b,c"] {
            assert_eq!(cell(plain), plain);
        }
        assert_eq!(cell("=a\r\nb"), "'=a\\u000d\\u000ab");
        // A tab in front would hide the formula from a check, and not from a spreadsheet.
        assert_eq!(cell("\t=1+1"), "\\u0009=1+1");
    }
}
