//! Text that came from outside, for a file or a terminal.

/// Escapes what would steer a terminal or begin a line: control characters, and the characters that
/// reverse the direction of writing. `keep` are left as they are.
///
/// The form is that of JSON (`\u001b`), so the result stays valid where the text is JSON.
pub fn harmless(text: &str, keep: &[char]) -> String {
    let mut shown = String::with_capacity(text.len());
    for one in text.chars() {
        let steers = match one {
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
            _ => one.is_control() && !keep.contains(&one),
        };
        match steers {
            true => shown.push_str(&format!("\\u{:04x}", u32::from(one))),
            false => shown.push(one),
        }
    }
    shown
}

/// The first `most` characters of a text from outside, in one line.
pub fn shortened(text: &str, most: usize) -> String {
    let beginning: String = text.chars().take(most).collect();
    let dots = if beginning.len() < text.len() { "..." } else { "" };
    harmless(&beginning, &[]) + dots
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
    fn what_steers_a_terminal_is_escaped_and_the_rest_stays() {
        assert_eq!(harmless("Wörter × 2\n\tend", &['\n', '\t']), "Wörter × 2\n\tend");
        assert_eq!(harmless("a\nb", &[]), "a\\u000ab");
        assert_eq!(harmless("\u{1b}]0;x\u{7}\u{9b}2J", &['\n']), "\\u001b]0;x\\u0007\\u009b2J");
        assert_eq!(harmless("a\u{202e}b", &[]), "a\\u202eb");
    }
}
