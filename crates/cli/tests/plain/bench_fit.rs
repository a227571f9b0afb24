//! `polyrail bench --fit`, and the note about sizes with a bare unit.

use serde_json::{Value, json};

use crate::common::{self, PROGRAM, polyrail};

/// The answer depends on the machine: no machine keeps up with the first rate, every machine with the second.
#[test]
fn the_fit_of_nics_is_answered_with_the_cpus_of_each_way() {
    for (rates, answer) in [("16x400gbit", "no"), ("1mbit,1mbit", "yes")] {
        let options = format!("--fit {rates} --sizes 64KiB,1MiB --time 50ms --rounds 2 --rails 1");
        let run = |more: &[&str]| {
            polyrail(["bench"]).args(options.split_whitespace()).args(more).output().unwrap()
        };
        let report = common::report("bench", 0, &run(&["--json", "-"]), &options);
        let fit = &report["fit"];
        let answer = if answer == "yes" { yes(fit) } else { answer };
        assert_eq!((&fit["asked"], &fit["answer"]), (&json!(rates), &json!(answer)), "{fit:#}");
        let ends = fit["ends"].as_array().unwrap();
        let ways: Vec<_> = ends.iter().map(|end| end["way"].as_str().unwrap()).collect();
        assert_eq!(ways, ["sends", "receives"], "both passes of one host count together");
        for end in ends {
            assert_eq!(end["size_bytes"], 1 << 20);
            assert!(end["cpu_seconds_per_gb"]["min"].as_f64().unwrap() > 0.0, "{fit:#}");
            assert!(end["most_gbit_per_s"].as_f64().unwrap() > 0.0, "{fit:#}");
        }
        assert!(fit["pays_from_bytes"].as_u64().is_some_and(|size| size >= 64 << 10), "{fit:#}");
        let ops: Vec<_> =
            report["results"].as_array().unwrap().iter().map(|it| &it["op"]).collect();
        assert_eq!(ops, ["write", "write", "read", "read"]);

        let output = run(&["--json", "none"]);
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.starts_with(&format!("does {rates} (")), "{text}");
        assert!(text.contains(" fit? "), "{text}");
        for part in
            ["CPUs for ", "sends, 1MiB", "receives, 1MiB", "pays from ", "note: both ends are"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}

/// The answer for a low rate: undecided if the machine is so busy that its memory copies can't be measured.
fn yes(fit: &Value) -> &'static str {
    let ends = fit["ends"].as_array().unwrap();
    match ends.iter().any(|end| end["memory_gbit_per_s"].is_null()) {
        true => "undecided",
        false => "yes",
    }
}

/// Machines without a boot ID are taken for two different ones.
#[test]
fn two_machines_have_two_ends_each_way_and_each_measures_its_memory() {
    let script = "mount --bind /dev/null /proc/sys/kernel/random/boot_id && exec \"$0\" bench \
                  --fit 1mbit,1mbit --sizes 64KiB,1MiB --time 50ms --rounds 2 --rails 1 --json -";
    let mut command = std::process::Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script]);
    let output = command.arg(PROGRAM).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if output.stdout.is_empty() && !said.contains("polyrail: ") {
        let run = "sudo -E cargo test -p polyrail-cli --test plain two_machines_have";
        return polyrail_skip::skip(format!("no namespaces: {said}"), run);
    }
    let fit = &common::report("bench", 0, &output, script)["fit"];
    assert_eq!(fit["answer"], yes(fit), "{fit:#}");
    let ends = fit["ends"].as_array().unwrap();
    let ways: Vec<_> = ends.iter().map(|end| end["way"].as_str().unwrap()).collect();
    assert_eq!(ways, ["sends", "sends", "receives", "receives"]);
    // The end that connects comes first. Other programs that keep one end from measuring may keep the other one, too.
    let is_measured = |at: usize| ends[at]["memory_gbit_per_s"].is_f64();
    let [here, there] = [[0, 2], [1, 3]].map(|end| end.into_iter().any(is_measured));
    assert!(there || !here, "{fit:#}");
}

#[test]
fn a_size_with_a_bare_unit_has_one_note_in_each_command_with_a_list_of_sizes() {
    for command in [
        "bench --sizes 1K,2M --iters 1 --rounds 1 --json none",
        "collective all_reduce --sizes 1K,2M --ranks 2 --rounds 1 --iterations 1",
        "profile --plan --gpus none --sizes 1K,2M",
    ] {
        let output = polyrail(command.split_whitespace()).output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{command}: {told}");
        assert_eq!(told.matches("note: 1K is taken as 1KiB").count(), 1, "{command}: {told}");
        assert_eq!(told.matches("is taken as").count(), 1, "{command}: {told}");
    }
}
