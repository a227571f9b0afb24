//! Self-contained pages in one style: a header of plain HTML, the data, and a script that draws it.

use std::fmt::Write as _;

use polyrail_report::{Host, json_in_markup, markup, show_memory, without_invitation};

/// Header of a page: plain HTML, so readers without JavaScript also see the verdict.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PageHead {
    /// Short title that names the measured machine or nodes.
    pub title: String,
    /// Start of the run, in milliseconds since 1970 UTC; `None` omits the date.
    pub started_unix_ms: Option<u64>,
    pub verdict: PageVerdict,
    /// At most five results, each a value with its unit, and a label.
    pub tiles: Vec<(String, String)>,
    /// Facts on machine and run, each a name, and a value as text.
    pub facts: Vec<(String, String)>,
}

/// Variation of the rounds, in percent, from which on results are too noisy to use.
pub const NOISY_PERCENT: f64 = 20.0;

/// The banner on top of a page.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PageVerdict {
    pub tone: Tone,
    /// Word in front, for readers who see no colours: `Too noisy`.
    pub word: String,
    /// One sentence with the number and what to do.
    pub text: String,
    /// Further sentences, the most important one first.
    pub more: Vec<String>,
}

/// Colour of a banner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    #[default]
    Good,
    /// Undecided, or based on few samples.
    Unclear,
    /// Too noisy, wrong bytes, ended early, or a rail was down.
    Bad,
}

/// Banners of results that are not to be used as they are: the beginning of the note that says so, a tone, a word.
const FLAWS: [(&str, Tone, &str); 2] = [
    ("this is a debug build", Tone::Bad, "Not to be used"),
    ("other programs ", Tone::Unclear, "Busy machine"),
];

/// Returns tone, word and text of the banner if one of these notes says that the results are not to be used.
pub fn flaw(notes: &[String]) -> Option<(Tone, &'static str, String)> {
    FLAWS.iter().find_map(|(begin, tone, word)| {
        let note = notes.iter().find(|note| note.starts_with(begin))?;
        Some((*tone, *word, note.clone()))
    })
}

impl PageHead {
    /// Adds a fact if it is known.
    pub fn fact(&mut self, name: &str, value: Option<impl Into<String>>) {
        if let Some(value) = value.map(Into::into).filter(|value| !value.is_empty()) {
            self.facts.push((name.to_owned(), value));
        }
    }

    /// Adds the command line without its secrets.
    pub fn command(&mut self, arguments: &[String]) {
        let word = |word: &String| {
            let word = without_invitation(word);
            if word.is_empty() || word.contains(char::is_whitespace) {
                format!("'{word}'")
            } else {
                word
            }
        };
        let words: Vec<String> = arguments.iter().map(word).collect();
        self.fact(
            "command line",
            (!words.is_empty()).then(|| format!("polyrail {}", words.join(" "))),
        );
    }

    /// Adds a machine.
    pub fn machine(&mut self, host: &Host) {
        self.fact("host", Some(&*host.hostname));
        self.fact("kernel", Some(format!("Linux {}", host.kernel)));
        let allowed = match host.cpus_allowed == host.cpus {
            true => String::new(),
            false => format!(", {} of them allowed", host.cpus_allowed),
        };
        let model = host.cpu_model.as_deref().unwrap_or("CPU of unknown model");
        self.fact("CPU", Some(format!("{model} \u{d7} {}{allowed}", host.cpus)));
        self.fact("memory", host.memory_bytes.map(show_memory));
        self.fact("congestion control", host.congestion_control.as_deref());
        self.fact("huge pages", host.transparent_hugepage.as_deref());
    }
}

/// Returns a self-contained page with this header that shows `json` by `script`, in the style of all reports.
///
/// The script reads the data as text of the element `data`, draws into the element `report`, and may call the drawing
/// functions of `report/charts.js`. `script` is inserted verbatim and must be trusted; header and data are escaped.
pub fn page(head: &PageHead, json: &str, script: &str) -> String {
    let json = json_in_markup(json);
    let title = markup(&head.title);
    let head = head_markup(head);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src \
         'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<link rel=\"icon\" href=\"data:,\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{head}\
         <div id=\"report\"><noscript>The charts need JavaScript, which is in this \
         file.</noscript></div>\n</main>\n<div id=\"hover\" hidden></div>\n\
         <script type=\"application/json\" id=\"data\">{json}</script>\n\
         <script>\n{CHARTS}{script}\nfinish();\n</script>\n</body>\n</html>\n"
    )
}

fn head_markup(head: &PageHead) -> String {
    let mut text = format!("<h1>{}</h1>\n", markup(&head.title));
    // Writing to a string can't fail.
    if let Some(started) = head.started_unix_ms {
        let _ = writeln!(text, "<p class=\"soft\">{}</p>", utc(started));
    }
    let PageVerdict { tone, word, text: sentence, more } = &head.verdict;
    let tone = match tone {
        Tone::Good => "good",
        Tone::Unclear => "unclear",
        Tone::Bad => "bad",
    };
    let _ = write!(
        text,
        "<div class=\"banner {tone}\"><p><b>{}:</b> {}</p>",
        markup(word),
        markup(sentence)
    );
    if !more.is_empty() {
        let lines: String = more.iter().map(|one| format!("<li>{}</li>", markup(one))).collect();
        let _ = write!(text, "<ul>{lines}</ul>");
    }
    text += "</div>\n<div class=\"tiles\">";
    for (value, label) in &head.tiles {
        let (value, label) = (markup(value).replace(" %", "\u{a0}%"), markup(label));
        let _ = write!(text, "<div class=\"tile\"><b>{value}</b>{label}</div>");
    }
    text += "</div>\n";
    if !head.facts.is_empty() {
        text += "<details id=\"run\" open><summary>Machine and run</summary><dl>";
        for (name, value) in &head.facts {
            let _ = write!(text, "<dt>{}</dt><dd>{}</dd>", markup(name), markup(value));
        }
        text += "</dl></details>\n";
    }
    text
}

/// Formats a time, such as `2026-11-30 22:23 UTC`.
fn utc(unix_ms: u64) -> String {
    let minutes = unix_ms / 60_000;
    // Civil days are counted from March of the year 0, in eras of 400 years.
    let days = minutes / 1_440 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) =
        (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute) = (minutes % 1_440 / 60, minutes % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

/// Style of reports: colours for light and dark, tables, drawings.
const STYLE: &str = include_str!("report/style.css");
const CHARTS: &str = include_str!("report/charts.js");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(utc(0), "1970-01-01 00:00 UTC");
        assert_eq!(utc(951_782_399_000), "2000-02-28 23:59 UTC");
        assert_eq!(utc(951_782_400_000), "2000-02-29 00:00 UTC");
        assert_eq!(utc(1_796_077_380_000), "2026-11-30 22:23 UTC");
    }

    #[test]
    fn a_note_on_a_debug_build_comes_before_one_on_other_programs() {
        let notes = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
        let busy = "other programs used up to 81 % of the CPUs";
        let (tone, word, text) = flaw(&notes(&["a note", busy])).unwrap();
        assert_eq!((tone, word, &*text), (Tone::Unclear, "Busy machine", busy));
        let both = flaw(&notes(&[busy, "this is a debug build: take no figures from it"])).unwrap();
        assert_eq!((both.0, both.1), (Tone::Bad, "Not to be used"));
        assert_eq!(flaw(&notes(&["a note"])), None);
    }

    #[test]
    fn a_head_says_everything_without_a_script_and_nothing_of_it_is_markup() {
        let mut head = PageHead {
            title: "Mesh of <b>".to_owned(),
            started_unix_ms: Some(0),
            verdict: PageVerdict {
                tone: Tone::Bad,
                word: "Too noisy".to_owned(),
                text: "over <tcp>".to_owned(),
                more: vec!["<more>".to_owned()],
            },
            tiles: vec![("1 <GB>".to_owned(), "rate & more".to_owned())],
            facts: Vec::new(),
        };
        head.command(&["bench".to_owned(), "two words".to_owned(), String::new()]);
        head.fact("GPU", None::<String>);
        let page = page(&head, "{}", "");
        for part in [
            "<h1>Mesh of &lt;b&gt;</h1>",
            "<div class=\"banner bad\"><p><b>Too noisy:</b> over &lt;tcp&gt;</p><ul><li>&lt;more&gt;</li></ul></div>",
            "<b>1 &lt;GB&gt;</b>rate &amp; more</div>",
            "<dt>command line</dt><dd>polyrail bench ",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert!(!page.contains("<dt>GPU"), "{page}");
    }
}
