//! `polyrail config` as a user runs it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::common::golden::assert_golden;
use crate::common::{PROGRAM, polyrail, refusal, repository};

fn config(args: &[&str]) -> Command {
    let mut command = polyrail(["config"]);
    command.args(args);
    command
}

fn stdout(output: &Output) -> &str {
    assert!(output.status.success(), "{output:?}");
    std::str::from_utf8(&output.stdout).unwrap()
}

/// Standard error of a run that exits with 2 and prints no result.
fn refused(mut command: Command) -> String {
    refusal(2, &command.output().unwrap())
}

fn write(folder: &Path, text: &str) -> String {
    let path = folder.join("polyrail.yaml");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn show_prints_every_setting_and_marks_the_changed_ones() {
    let output = config(&["show"]).output().unwrap();
    let text = stdout(&output);
    assert!(text.contains("  chunk_bytes") && text.contains("512KiB"), "{text}");
    assert!(text.contains("0 (auto: 1 to 4 per rail, as CPUs allow, and 2 at least)"), "{text}");
    assert!(!text.contains('*'), "{text}");
    assert!(text.contains("default\n"), "{text}");
    assert_eq!(text.lines().count(), polyrail_config::names().count());

    let output = config(&["show", "--set", "chunk_bytes=1MiB"]).output().unwrap();
    let text = stdout(&output);
    let line = text.lines().find(|line| line.contains("chunk_bytes")).unwrap();
    assert!(line.starts_with("* ") && line.ends_with(" set") && line.contains(" 1MiB "), "{line}");
}

#[test]
fn show_tells_every_layer_apart() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "preset: throughput\nops_pool: 8192\n");
    let output = config(&["show", "--config", &path, "--set", "sockets=3"])
        .env("POLYRAIL_WINDOW_CHUNKS", "32")
        .env("NCCL_SOCKET_IFNAME", "eth")
        .output()
        .unwrap();
    let text = stdout(&output);
    for (name, value, origin) in [
        ("preset", "throughput", format!("file {path}:1")),
        ("ops_pool", "8192", format!("file {path}:2")),
        ("chunk_bytes", "1MiB", "preset throughput".to_owned()),
        ("rails", "eth", "env NCCL_SOCKET_IFNAME".to_owned()),
        ("window_chunks", "32", "env POLYRAIL_WINDOW_CHUNKS".to_owned()),
        ("sockets", "3", "set".to_owned()),
        ("payload", "none", "default".to_owned()),
    ] {
        let is_it =
            |line: &&str| line.trim_start_matches(['*', ' ']).starts_with(&format!("{name} "));
        let line = text.lines().find(is_it).unwrap();
        assert!(line.contains(&format!(" {value} ")) && line.ends_with(&origin), "{line}");
    }
}

#[test]
fn show_json_has_numbers_as_numbers_origins_and_warnings() {
    let output = config(&["show", "--json", "--preset", "cpu"])
        .env("NCCL_BUFFSIZE", "4194304")
        .output()
        .unwrap();
    let json: Value = serde_json::from_str(stdout(&output)).unwrap();
    assert_eq!(json["schema_version"], 1);
    let settings = json["settings"].as_object().unwrap();
    assert_eq!(settings.len(), polyrail_config::names().count());
    assert_eq!(settings["spin"]["value"], "off");
    assert_eq!(settings["spin"]["default"], "auto");
    assert_eq!(settings["spin"]["origin"], "preset cpu");
    assert_eq!(settings["spin"]["changed"], true);
    assert_eq!(settings["preset"]["value"], "cpu");
    assert_eq!(settings["verbose_bindings"]["value"], false);
    assert_eq!(settings["chunk_bytes"]["unit"], "bytes");
    assert!(json["warnings"][0].as_str().unwrap().starts_with("NCCL_BUFFSIZE=4194304 is read"));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.starts_with("polyrail: warning: NCCL_BUFFSIZE=4194304 is read"), "{stderr}");
}

/// Each message has the fault and the allowed values in one line, and a fix in another.
#[test]
fn every_kind_of_config_error_ends_with_exit_code_2_and_a_help_line() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |variable: Option<(&str, &str)>, words: &[&str]| {
        let mut command = config(words);
        let said = command.current_dir(&folder).envs(variable).output().unwrap();
        let said = refusal(2, &said);
        is_formed(&said);
        said
    };
    let mut said = String::new();
    for words in [
        &["show", "--set", "chunk_bytes=512K"][..],
        &["show", "--preset", "latency", "--set", "tx_bindings=0-3"],
        &["help", "chunk_byte"],
        &["show", "--preset", "fast"],
        &["show", "--set", "sockets"],
        &["show", "--set", "colour=red"],
        &["show", "--config", "/nonexistent/polyrail.yaml"],
        &["show", "--config", "/"],
    ] {
        said += &format!("$ {}\n{}", words.join(" "), refused(None, words));
    }
    for (name, value) in [
        ("POLYRAIL_CONFIG", "/nonexistent/polyrail.yaml"),
        ("POLYRAIL_CONFIG", "/"),
        ("POLYRAIL_CHUNKBYTES", "1"),
        ("POLYRAIL_COLOUR", "red"),
        ("POLYRAIL_SOCKETS", "many"),
    ] {
        said += &format!("{name}={value}\n{}", refused(Some((name, value)), &["show"]));
    }
    for text in [
        "sockets: 2\nchunk_byte: 1MiB\n",
        "colour: red\n",
        "sockets: many\n",
        "sockets: 1\nsockets: 2\n",
        "- sockets\n",
        "sockets: [1]\n",
        "sockets:\n",
        "sockets: 'open\n",
        "sockets: &x 1\n",
        "reconnect_min_ms: 5s\n",
        "rail_stall_ms: 11s\n",
        "\u{1b}[2J: 1\n",
    ] {
        write(folder.path(), text);
        let by_option = refused(None, &["show", "--config", "polyrail.yaml"]);
        assert_eq!(refused(Some(("POLYRAIL_CONFIG", "polyrail.yaml")), &["show"]), by_option);
        said += &format!("{text:?}\n{by_option}");
    }
    assert_golden("config/refused", &said);
}

/// Checks that a message has the fault and the allowed values in one line, and a fix in another.
fn is_formed(message: &str) {
    let lines: Vec<&str> = message.lines().collect();
    let [first, help] = lines[..] else { panic!("{message}") };
    assert!(first.starts_with("polyrail: ") && first.contains("; allowed: "), "{message}");
    assert!(help.len() > "help: ".len() && help.starts_with("help: "), "{message}");
}

#[test]
fn a_variable_that_is_not_text_is_refused_only_where_it_is_ours() {
    let garbage = OsStr::from_bytes(b"eth\xff");
    let mut ours = config(&["show"]);
    ours.env("POLYRAIL_RAILS", garbage);
    let message = refused(ours);
    assert!(message.contains("POLYRAIL_RAILS is not UTF-8 text: `eth\\xff`"), "{message}");
    is_formed(&message);

    let mut alias = config(&["show"]);
    let output = alias.env("NCCL_SOCKET_IFNAME", garbage).output().unwrap();
    let warning = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{warning}");
    assert!(
        warning.contains("NCCL_SOCKET_IFNAME=eth\\xff is not UTF-8 text and is ignored"),
        "{warning}"
    );

    let mut foreign = config(&["show"]);
    foreign.env("PS1", garbage).env(garbage, "1").env("NCCL_NET", "Socket");
    let output = foreign.output().unwrap();
    assert!(stdout(&output).contains("rails"));
    assert!(output.stderr.is_empty(), "{output:?}");
}

#[test]
fn odd_values_of_nccl_and_service_links_of_kubernetes_stop_no_command() {
    for (name, value, warning) in [
        ("NCCL_DEBUG", "DEBUG", "NCCL_DEBUG=DEBUG is not a level of NCCL"),
        ("NCCL_DEBUG_SUBSYS", "INIT,NET,", ""),
        ("NCCL_NSOCKS_PERTHREAD", "64", "NCCL_NSOCKS_PERTHREAD=64 is read as 32"),
        ("NCCL_DEBUG_FILE", "/nonexistent/n.%p.log", "NCCL_DEBUG_FILE is ignored"),
        ("POLYRAIL_PORT", "tcp://10.96.0.7:9754", ""),
        ("POLYRAIL_EXPORTER_SERVICE_PORT_METRICS", "9754", ""),
    ] {
        let mut command =
            polyrail(["bench", "--sizes", "64", "--iters", "1", "--rounds", "1", "--json", "none"]);
        let output = command.env(name, value).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{name}={value}: {said}");
        assert_eq!(said.contains("warning"), !warning.is_empty(), "{name}={value}: {said}");
        assert!(said.contains(warning), "{name}={value}: {said}");
    }
}

#[test]
fn help_explains_one_setting() {
    let output = config(&["help", "dump_signal"]).output().unwrap();
    let text = stdout(&output);
    assert_golden("config/help_of_a_setting", text);
}

#[test]
fn docs_prints_the_committed_page() {
    let output = config(&["docs"]).output().unwrap();
    let page = repository().join("docs/config.md");
    let committed = std::fs::read_to_string(page).unwrap();
    assert!(stdout(&output) == committed, "run: cargo run -- config docs > docs/config.md");
}

#[test]
fn a_developers_own_settings_reach_what_cargo_runs_but_no_test() {
    let named = std::env::var_os("POLYRAIL_CONFIG");
    assert!(named.is_some_and(|file| file.is_empty()), "start tests by cargo, or by .cargo/runner");
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("polyrail");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("config.yml"), "preset: nonsense\n").unwrap();
    let runner = repository().join(".cargo/runner");
    let started_in = |place: &str, developers: &[(&str, &str)]| {
        let program = home.path().join(place).join("polyrail");
        std::fs::create_dir_all(program.parent().unwrap()).unwrap();
        let _ = std::os::unix::fs::symlink(PROGRAM, &program);
        let mut command = Command::new(&runner);
        command.arg(program).args(["config", "show"]).env_remove("POLYRAIL_CONFIG");
        command.env("XDG_CONFIG_HOME", home.path()).envs(developers.iter().copied());
        command.output().unwrap()
    };
    let clean = config(&["show"]).output().unwrap();
    let variables = [
        ("POLYRAIL_CHANNELS", "nonsense"),
        ("POLYRAIL_NO_SETTING", "1"),
        ("NCCL_BUFFSIZE", "nonsense"),
        ("UCCL_TCPX_WINDOW_SIZE", "nonsense"),
    ];
    for developers in [&variables[..0], &variables] {
        let in_test = started_in("debug/deps", developers);
        assert_eq!(stdout(&in_test), stdout(&clean));
        assert!(in_test.stderr.is_empty(), "{in_test:?}");
    }
    let seen = |developers: &[(&str, &str)]| {
        String::from_utf8(started_in("debug", developers).stderr).unwrap()
    };
    assert!(seen(&[]).contains("polyrail/config.yml:1"), "{}", seen(&[]));
    for variable in variables {
        let said = seen(&[("POLYRAIL_CONFIG", ""), variable]);
        assert!(said.contains(variable.0), "{said}");
    }
}

#[test]
fn a_file_that_nobody_names_is_found_and_the_origin_says_so() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join(".config/polyrail");
    std::fs::create_dir_all(&folder).unwrap();
    let (user, named, option) =
        (folder.join("config.yml"), home.path().join("named.yml"), home.path().join("option.yml"));
    std::fs::write(&user, "channels: 3\n").unwrap();
    std::fs::write(&named, "channels: 5\nsockets: 2\n").unwrap();
    std::fs::write(&option, "channels: 7\n").unwrap();
    let row = |named: Option<&str>, args: &[&str], setting: &str| {
        let mut command = config(&["show"]);
        command.args(args);
        command
            .env("HOME", home.path())
            .env_remove("XDG_CONFIG_HOME")
            .env_remove("POLYRAIL_CONFIG");
        if let Some(named) = named {
            command.env("POLYRAIL_CONFIG", named);
        }
        let output = command.output().unwrap();
        let all = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        all.lines()
            .find(|line| line.trim_start_matches(['*', ' ']).starts_with(setting))
            .unwrap_or(&all)
            .to_owned()
    };
    let name = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    let found = row(None, &[], "channels ");
    assert!(found.contains(" 3 ") && found.contains(&format!("file {}:1", name(&user))), "{found}");
    let found = row(Some(&name(&named)), &[], "channels ");
    assert!(
        found.contains(" 5 ") && found.contains(&format!("file {}:1", name(&named))),
        "{found}"
    );
    let on_top = ["--config", &name(&option)];
    assert!(row(Some(&name(&named)), &on_top, "channels ").contains(&name(&option)));
    assert!(row(Some(&name(&named)), &on_top, "sockets ").contains(&name(&named)));
    assert!(row(Some(""), &[], "channels ").ends_with("default"), "an empty name means no file");
    let missing = row(Some("/no/such/file.yml"), &[], "polyrail: ");
    assert!(missing.contains("can't read the config file /no/such/file.yml"), "{missing}");
}

#[test]
fn a_variable_whose_name_is_no_text_is_unknown() {
    let mut command = config(&["show"]);
    command.env(OsStr::from_bytes(b"POLYRAIL_CHUNK_BYTE\xff"), "1");
    let text = refused(command);
    assert!(text.contains("unknown setting `POLYRAIL_CHUNK_BYTE\\xff`"), "{text}");
}

#[test]
fn rails_that_are_not_there_are_told_with_where_they_were_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), "sockets: 1\nrails: eth77\n");
    let at_file = format!("file {file}:2:8");
    for command in ["bench --iters 1", "profile --gpus none --sizes 8 --out new"] {
        for (variable, value, origin) in [
            ("NCCL_SOCKET_IFNAME", "eth77", "env NCCL_SOCKET_IFNAME"),
            ("POLYRAIL_RAILS", "eth77", "env POLYRAIL_RAILS"),
            ("POLYRAIL_CONFIG", &file, &at_file),
        ] {
            let mut command = polyrail(command.split(' '));
            command.env(variable, value).current_dir(folder.path());
            let output = command.output().unwrap();
            let message = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{message}");
            let wanted =
                format!("rails = `eth77` ({origin}): there is no interface eth77; allowed: ");
            assert!(message.contains(&wanted), "{wanted} in {message}");
            assert_eq!(
                message.lines().filter(|line| line.contains("eth77")).count(),
                1,
                "{message}"
            );
        }
    }
}

#[test]
fn root_obeys_no_settings_of_another_user_whose_home_it_has() {
    if !rustix::process::geteuid().is_root() {
        return polyrail_skip::skip(
            "needs root",
            "sudo cargo test -p polyrail-cli --test plain config::",
        );
    }
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join(".config/polyrail");
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("config.yml");
    let log = home.path().join("log");
    std::fs::write(&file, format!("log_file: {}\n", log.display())).unwrap();
    let show = || {
        let shown = config(&["show"])
            .env("HOME", home.path())
            .env_remove("XDG_CONFIG_HOME")
            // Cargo's runner sets this variable, and then no file is looked for.
            .env_remove("POLYRAIL_CONFIG")
            .output();
        let shown = shown.unwrap();
        (stdout(&shown).to_owned(), String::from_utf8(shown.stderr.clone()).unwrap())
    };
    let (settings, _) = show();
    assert!(settings.contains(log.to_str().unwrap()), "its own are obeyed: {settings}");
    for path in [file.as_path(), home.path()] {
        std::os::unix::fs::chown(path, Some(65534), None).unwrap();
        let (settings, warning) = show();
        assert!(!settings.contains(log.to_str().unwrap()), "{settings}");
        let (name, why) = (file.display().to_string(), "belongs to user 65534");
        assert!(
            warning.contains(&format!("{name} is ignored")) && warning.contains(why),
            "{warning}"
        );
        assert_eq!(warning.matches("is ignored").count(), 1, "{warning}");
        std::os::unix::fs::chown(path, Some(0), None).unwrap();
    }
    assert!(!log.exists());
}
