//! Splits the lines that a page tells its reader to type into commands and words, as a shell does.

/// The commands of a line, each with its words, without comments, redirections and variables in front of a command.
pub(crate) fn commands(line: &str) -> Result<Vec<Vec<String>>, String> {
    let mut reader = Reader { rest: line.chars().collect(), at: 0, found: Vec::new() };
    reader.read(false)?;
    Ok(reader.found)
}

/// The comment at the end of a line, without its sign.
pub(crate) fn comment(line: &str) -> Option<&str> {
    let mut quote = None;
    let mut before = ' ';
    for (at, one) in line.char_indices() {
        match quote {
            Some(open) if one == open => quote = None,
            None if one == '\'' || one == '"' => quote = Some(one),
            None if one == '#' && before.is_whitespace() => return Some(line[at + 1..].trim()),
            Some(_) | None => {}
        }
        before = one;
    }
    None
}

struct Reader {
    rest: Vec<char>,
    at: usize,
    found: Vec<Vec<String>>,
}

impl Reader {
    fn next(&mut self) -> Option<char> {
        let one = self.rest.get(self.at).copied();
        self.at += 1;
        one
    }

    fn peek(&self) -> Option<char> {
        self.rest.get(self.at).copied()
    }

    /// Reads to the end, or to the bracket that closes a substitution.
    fn read(&mut self, is_nested: bool) -> Result<(), String> {
        let mut words: Vec<String> = Vec::new();
        let mut word: Option<String> = None;
        let mut quote: Option<char> = None;
        loop {
            let Some(one) = self.next() else {
                if quote.is_some() || is_nested {
                    return Err("a quotation mark or a bracket is open at its end".to_owned());
                }
                break;
            };
            match (quote, one) {
                (Some(open), _) if one == open => quote = None,
                (None | Some('"'), '$') if self.peek() == Some('(') => {
                    self.at += 1;
                    self.read(true)?;
                    word.get_or_insert_default().push_str("SUBSTITUTED");
                }
                (Some(_), _) => word.get_or_insert_default().push(one),
                (None, '\'' | '"') => {
                    quote = Some(one);
                    word.get_or_insert_default();
                }
                (None, '\\') => word.get_or_insert_default().extend(self.next()),
                (None, ')') if is_nested => break,
                (None, '#') if word.is_none() => {
                    self.at = self.rest.len();
                }
                (None, '|' | '&' | ';') => {
                    words.extend(word.take());
                    self.add(std::mem::take(&mut words));
                }
                (None, '>' | '<') => {
                    // The number of a descriptor belongs to the sign.
                    let is_number = |word: &String| word.bytes().all(|one| one.is_ascii_digit());
                    words.extend(word.take().filter(|word| !is_number(word)));
                    words.push(one.to_string());
                }
                (None, _) if one.is_whitespace() => words.extend(word.take()),
                (None, _) => word.get_or_insert_default().push(one),
            }
        }
        words.extend(word);
        self.add(words);
        Ok(())
    }

    fn add(&mut self, words: Vec<String>) {
        let mut kept = Vec::new();
        let mut is_target = false;
        for word in words {
            let is_sign = word == ">" || word == "<";
            if !is_sign && !is_target {
                kept.push(word);
            }
            is_target = is_sign;
        }
        let sets = |word: &String| {
            let name = word.split_once('=').map_or("", |(name, _)| name);
            !name.is_empty() && name.bytes().all(|one| one.is_ascii_alphanumeric() || one == b'_')
        };
        let first = kept.iter().position(|word| !sets(word) && word != "do");
        if let Some(first) = first {
            self.found.push(kept.split_off(first));
        }
    }
}

#[test]
fn lines_are_split_as_a_shell_splits_them() {
    let split =
        |line| commands(line).unwrap().iter().map(|words| words.join("|")).collect::<Vec<_>>();
    assert_eq!(split("A=1 polyrail bench 'a b' > x  # c"), ["polyrail|bench|a b"]);
    assert_eq!(
        split("eval \"$(polyrail nccl env)\" && x 2>y z"),
        ["polyrail|nccl|env", "eval|SUBSTITUTED", "x|z"]
    );
    assert_eq!(split("polyrail x=1 a#b | jq '.[] | .a'"), ["polyrail|x=1|a#b", "jq|.[] | .a"]);
    assert!(commands("polyrail 'bench").is_err());
    assert_eq!(comment("polyrail a#b '# no' # yes"), Some("yes"));
    assert_eq!(comment("polyrail a#b"), None);
}
