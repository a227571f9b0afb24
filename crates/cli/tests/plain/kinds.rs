//! Every host command on every kind of machine: each ends with a result.

use std::collections::BTreeSet;
use std::process::Output;

use polyrail_host::fixtures;

use crate::common::polyrail;

fn on_copy(words: &str, root: &str) -> Output {
    polyrail(words.split(' ')).args(["--sysroot", root]).output().unwrap()
}

/// Commands that take a copy of a machine.
const COMMANDS: &[&str] = &[
    "host show",
    "host show --json",
    "host plan bindings",
    "host show bindings eth0:0",
    "host show irq --interval 0s",
    "host plan irq",
    "host plan tune throughput",
    "doctor",
];

#[test]
fn commands_end_with_a_result_on_each_kind() {
    let mut wrong = Vec::new();
    for kind in fixtures::kinds() {
        let fixture = kind.build();
        let root = fixture.path().to_str().unwrap();
        let asked = kind.says.iter().map(|(words, _)| match *words {
            "host show irq" => "host show irq --interval 0s",
            words => words,
        });
        let asked: BTreeSet<&str> = COMMANDS.iter().copied().chain(asked).collect();
        for words in asked {
            let output = on_copy(words, root);
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
            let code = output.status.code();
            // 3: the machine lacks something that the command needs, and standard error names it.
            let is_hidden = kind.hides_interrupts && words.split(' ').nth(2) == Some("irq");
            let is_right = match code {
                Some(0 | 1) if !is_hidden => !stdout.is_empty() || !stderr.is_empty(),
                Some(2) if words.starts_with("doctor") => !stdout.is_empty(),
                Some(3) if is_hidden => stderr.contains("/proc/interrupts"),
                _ => false,
            };
            let has_broken = stderr.contains("panicked") || stderr.contains("internal");
            if !is_right || has_broken {
                wrong.push(format!("{}: {words}: {code:?} {stderr}", kind.name));
            }
            for (_, expected) in kind
                .says
                .iter()
                .filter(|(of, _)| words == *of || words.starts_with(&format!("{of} --i")))
            {
                if !stdout.contains(expected) && !stderr.contains(expected) {
                    wrong
                        .push(format!("{}: {words}: no `{expected}`\n{stdout}{stderr}", kind.name));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
