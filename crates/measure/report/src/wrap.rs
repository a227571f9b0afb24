//! Breaks lines that are wider than the terminal.

/// Breaks a line between words into lines of `columns` columns; lines after the first are indented. Text in backticks
/// is one word, because people copy it. A word that is too wide gets its own line.
pub fn wrapped(line: &str, columns: usize, indent: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut begun: Option<String> = None;
    for word in words(line) {
        let line = match begun.take() {
            Some(line) if width(&line) + 1 + width(word) <= columns => line + " " + word,
            Some(line) => {
                lines.push(line.trim_end().to_owned());
                " ".repeat(indent) + word
            }
            None => word.to_owned(),
        };
        begun = Some(line);
    }
    lines.extend(begun);
    lines
}

/// Breaks sentences between words, where a terminal of `columns` columns would break within a word. An indented line is
/// a command to copy or text from elsewhere, and stays whole. Without a limit, the text stays unchanged.
pub fn sentences(text: &str, columns: Option<usize>) -> String {
    let Some(columns) = columns else { return text.to_owned() };
    let broken = |line: &str| match line.starts_with(' ') {
        true => line.to_owned(),
        false => wrapped(line, columns, INDENT).join("\n"),
    };
    text.split('\n').map(broken).collect::<Vec<_>>().join("\n")
}

/// Indentation of continuation lines.
const INDENT: usize = 4;

/// Width of a text, in columns.
pub(crate) fn width(text: &str) -> usize {
    text.chars().count()
}

/// Splits a line at spaces into words; a quoted part (in backticks) stays one word.
pub(crate) fn words(line: &str) -> Vec<&str> {
    let (mut words, mut begin, mut is_quoted) = (Vec::new(), 0, false);
    for (at, sign) in line.char_indices() {
        match sign {
            '`' => is_quoted = !is_quoted && line[at + 1..].contains('`'),
            ' ' if !is_quoted => {
                words.push(&line[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    words.push(&line[begin..]);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_breaks_between_words_and_goes_on_indented() {
        assert_eq!(wrapped("one two three four", 10, 2), ["one two", "  three", "  four"]);
        assert_eq!(wrapped("one  two", 80, 4), ["one  two"]);
        assert_eq!(wrapped("  a verylongword", 6, 4), ["  a", "    verylongword"]);
        assert_eq!(wrapped("", 80, 4), [""]);
    }

    #[test]
    fn what_is_to_be_copied_stays_in_one_line() {
        assert_eq!(wrapped("run `a b c d` now", 9, 4), ["run", "    `a b c d`", "    now"]);
        assert_eq!(wrapped("it`s a b", 6, 0), ["it`s a", "b"]);
    }

    #[test]
    fn a_sentence_keeps_to_the_terminal_and_a_pipe_has_it_in_one_line() {
        let text = "error: a sentence of several words\n  a command that is to be copied whole";
        assert_eq!(sentences(text, None), text);
        let broken =
            "error: a sentence of\n    several words\n  a command that is to be copied whole";
        assert_eq!(sentences(text, Some(20)), broken);
    }
}
