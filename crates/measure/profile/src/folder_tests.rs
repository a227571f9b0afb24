use serde_json::{Value, json};

use super::*;
use crate::clock::AnchorMethod;
use crate::plan::{Endpoint, EndpointKind, PathKind, PlanBuilder, Step};
use crate::sample::{End, Flags, Verify};
use crate::table::Row;

pub(super) fn plan() -> Plan {
    let endpoint = |name: &str| Endpoint {
        rank: 0,
        kind: EndpointKind::Host,
        name: name.into(),
        host: "node".into(),
        device: "numa0".into(),
    };
    let builder = PlanBuilder::new([endpoint("a"), endpoint("b")]).path(PathKind::Tcp);
    builder.sizes([8, 4_096]).repetitions(3).build().unwrap()
}

pub(super) fn sample(step: &Step) -> Sample {
    Sample {
        order: step.order,
        configuration: step.configuration,
        repetition: step.repetition,
        posted_ns: 1_000 * step.order as i64,
        t_oneway_ns: Some(0.25),
        t_host_ns: Some(1234.567),
        bandwidth_bytes_per_s: Some(3.5e9),
        clock_uncertainty_ns: Some(0.1),
        source: End {
            clock: Some(1),
            start_ns: Some(-(1 << 61) - 1),
            end_ns: Some((1 << 61) + 1),
            temperature_c: Some(41.5),
            sm_clock_mhz: Some(1_980),
        },
        verify: Verify::Ok,
        flags: Flags::THROTTLED | Flags::IDLE,
        ..Sample::default()
    }
}

/// Creates a folder with this many samples.
fn filled(count: usize) -> (tempfile::TempDir, PathBuf) {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("profile");
    let recorder = Folder::create(&dir, &plan(), &Run::default()).unwrap();
    for step in recorder.remaining().iter().take(count) {
        recorder.append(&sample(step)).unwrap();
    }
    (root, dir)
}

fn fault(dir: &Path, name: &str, change: impl FnOnce(String) -> String) -> String {
    let path = dir.join(name);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, change(text)).unwrap();
    let error = Folder::open(dir).and_then(|folder| folder.samples()).unwrap_err();
    error.to_string().replace(&dir.display().to_string(), "DIR")
}

#[test]
fn what_is_recorded_reads_back_to_the_last_bit() {
    let (_root, dir) = filled(5);
    let folder = Folder::open(&dir).unwrap();
    let steps = plan().steps();
    let expected: Vec<Sample> = steps.iter().take(5).map(sample).collect();
    assert_eq!(folder.samples().unwrap(), expected);
    assert_eq!(*folder.plan(), plan());
    assert_eq!(*folder.run(), Run::default());
}

#[test]
fn one_way_times_between_two_clocks_follow_from_stamps_and_anchors() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("profile");
    let mut run = Run::default();
    for id in [1, 2] {
        let (name, kind) = (format!("gpu{id}"), "globaltimer".into());
        run.clocks.push(crate::Clock { id, name, kind, rank: Some(id - 1), tick_ns: 1.0 });
    }
    let recorder = Folder::create(&dir, &plan(), &run).unwrap();
    // The reference is 5000 behind the first clock and 700 ahead of the second.
    for (clock, clock_ns) in [(1, 15_000), (2, 9_300)] {
        let (parent, window, method) = (0, 0, AnchorMethod::Bracket);
        let (parent_before_ns, parent_after_ns) = (9_900, 10_100);
        let anchor =
            Anchor { clock, parent, window, method, parent_before_ns, clock_ns, parent_after_ns };
        recorder.append_anchor(&anchor).unwrap();
    }
    let end = |clock, start_ns, end_ns| {
        let (start_ns, end_ns) = (Some(start_ns), Some(end_ns));
        End { clock: Some(clock), start_ns, end_ns, ..End::default() }
    };
    let sinks = [
        // Ready before the source starts, ready 100 ns later, and with a clock that has no anchors.
        end(2, 9_000, 11_300),
        end(2, 9_400, 11_300),
        end(3, 9_000, 11_300),
    ];
    for (step, sink) in recorder.remaining().iter().zip(sinks) {
        let source = end(1, 15_000, 40_000);
        let empty = Sample { t_oneway_ns: None, clock_uncertainty_ns: None, ..sample(step) };
        recorder.append(&Sample { source, sink, ..empty }).unwrap();
    }
    let samples = recorder.folder().samples().unwrap();
    let times: Vec<_> = samples.iter().map(|one| one.t_oneway_ns).collect();
    assert_eq!(times, [Some(2_000.0), Some(1_900.0), None]);
    let bound = samples[0].clock_uncertainty_ns.unwrap();
    assert!((200.0..220.0).contains(&bound), "both clocks are known to 100 ns: {bound}");
    let table = fs::read_to_string(dir.join(SAMPLES)).unwrap();
    assert!(!table.contains("1900"), "the table has raw stamps only: {table}");
}

#[test]
fn a_line_that_was_cut_short_is_left_out_and_resume_goes_on_behind_it() {
    let (_root, dir) = filled(5);
    let path = dir.join(SAMPLES);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, &text[..text.len() - 7]).unwrap();
    assert_eq!(Folder::open(&dir).unwrap().samples().unwrap().len(), 4);

    let recorder = Folder::resume(&dir).unwrap();
    assert_eq!(recorder.session(), 1);
    let left = recorder.remaining();
    assert_eq!(left.len(), plan().steps().len() - 4);
    assert_eq!(left[0].order, 4);
    for step in &left {
        recorder.append(&Sample { session: 1, ..sample(step) }).unwrap();
    }
    assert!(recorder.remaining().is_empty());
    assert_eq!(recorder.folder().samples().unwrap().len(), plan().steps().len());
}

#[test]
fn a_folder_is_filled_by_one_process_at_a_time() {
    let (_root, dir) = filled(1);
    let _recorder = Folder::resume(&dir).unwrap();
    let error = Folder::resume(&dir).unwrap_err();
    assert!(matches!(error, ProfileError::Busy { .. }), "{error}");
    assert!(Folder::open(&dir).unwrap().samples().is_ok(), "reading is always possible");
}

#[test]
fn what_is_in_the_way_of_the_traces_is_named_before_anything_is_measured() {
    let (_root, dir) = filled(1);
    let kineto = dir.join("kineto");
    fs::write(&kineto, "").unwrap();
    for error in [Folder::claim(&dir).map(drop), Folder::resume(&dir).map(drop)] {
        let error = error.unwrap_err().to_string();
        assert!(error.contains("kineto/rank_0.pt.trace.json"), "{error}");
    }
    fs::remove_file(&kineto).unwrap();
    Folder::claim(&dir).map(drop).unwrap();
    assert!(!kineto.exists(), "a claim makes nothing");
}

#[test]
fn a_claim_ends_though_a_program_that_is_being_started_has_its_descriptor() {
    let (_root, dir) = filled(1);
    let claim = Folder::claim(&dir).unwrap();
    let inherited = claim.file.try_clone().unwrap();
    drop(claim);
    Folder::resume(&dir).unwrap();
    drop(inherited);
}

#[test]
fn a_folder_that_holds_something_is_left_alone() {
    let (_root, dir) = filled(1);
    let before = fs::read(dir.join(SAMPLES)).unwrap();
    let error = Folder::create(&dir, &plan(), &Run::default()).unwrap_err();
    assert!(matches!(error, ProfileError::NotEmpty { .. }), "{error}");
    assert!(error.help().unwrap().contains("--resume"));
    assert_eq!(fs::read(dir.join(SAMPLES)).unwrap(), before);
}

#[test]
fn a_place_is_tried_and_left_as_it_was() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("new");
    Folder::try_out(&dir).unwrap();
    assert!(!dir.exists());
    fs::create_dir(&dir).unwrap();
    Folder::try_out(&dir).unwrap();
    assert!(fs::read_dir(&dir).unwrap().next().is_none());
    fs::write(dir.join("notes"), "mine").unwrap();
    assert!(matches!(Folder::try_out(&dir), Err(ProfileError::NotEmpty { .. })));
    let below_a_file = Folder::try_out(dir.join("notes/profile")).unwrap_err();
    assert!(matches!(below_a_file, ProfileError::Io { .. }), "{below_a_file}");
}

#[test]
fn foreign_and_truncated_folders_are_told_by_what_is_missing() {
    let root = tempfile::tempdir().unwrap();
    let error = Folder::open(root.path()).unwrap_err().to_string();
    assert!(error.contains("is not a profile folder: it has no plan.json; allowed: "), "{error}");
    let (_root, dir) = filled(1);
    fs::remove_file(dir.join(SAMPLES)).unwrap();
    let error = Folder::open(&dir).unwrap_err().to_string();
    assert!(error.contains("it has no samples.csv; allowed: "), "{error}");
    assert!(Folder::open("/nonexistent/profile").is_err());
}

#[test]
fn faults_of_tables_name_file_line_and_column() {
    let (_root, dir) = filled(3);
    let wrong = fault(&dir, SAMPLES, |text| {
        text.replacen("1234.567", "soon", 2).replacen("soon", "1.5", 1)
    });
    assert_eq!(
        wrong,
        "DIR/samples.csv:3, column t_host_ns: `soon`; allowed: a number, 0.001 to 2.6e15"
    );
    let (_root, dir) = filled(1);
    let wrong = fault(&dir, SAMPLES, |text| text.replace("throttled", "tired"));
    assert!(wrong.starts_with("DIR/samples.csv:2, column flags: `tired|idle`; allowed: any of"));
    let (_root, dir) = filled(1);
    let wrong = fault(&dir, SAMPLES, |text| text.replacen("repetition", "rep", 1));
    assert!(wrong.starts_with("DIR/samples.csv:1: `rep` is not a column of this table"), "{wrong}");
    let (_root, dir) = filled(1);
    let wrong = fault(&dir, SAMPLES, |text| {
        let last = text.lines().last().unwrap().to_owned();
        text + &last + "\n"
    });
    assert!(wrong.starts_with("DIR/samples.csv:3: configuration"), "{wrong}");
    assert!(wrong.ends_with("is there twice; allowed: once"), "{wrong}");
}

#[test]
fn a_table_has_times_above_zero_only_and_one_way_times_of_one_clock_only() {
    // (column, value, what is allowed)
    for (column, value, allowed) in [
        ("t_oneway_ns", "0", "a number, 0.001 to 2.6e15"),
        ("t_oneway_ns", "-0.25", "a number, 0.001 to 2.6e15"),
        ("t_rtt2_ns", "0", "a number, 0.001 to 2.6e15"),
        ("t_host_ns", "0", "a number, 0.001 to 2.6e15"),
        ("t_host_ns", "1e16", "a number, 0.001 to 2.6e15"),
        ("bandwidth_bytes_per_s", "0", "a number, 0.001 to 1e18"),
        ("clock_uncertainty_ns", "-1", "a number, 0 to 2.6e15"),
        ("session", "4294967295", "a whole number, 0 to 4000"),
        ("clock_dst", "2", ""),
    ] {
        let (_root, dir) = filled(2);
        let place = Sample::COLUMNS.iter().position(|name| *name == column).unwrap();
        let wrong = fault(&dir, SAMPLES, |text| {
            let mut lines: Vec<&str> = text.lines().collect();
            let mut cells: Vec<&str> = lines[2].split(',').collect();
            cells[place] = value;
            let line = cells.join(",");
            lines[2] = &line;
            lines.join("\n") + "\n"
        });
        let expected = match column {
            "clock_dst" => {
                "column t_oneway_ns: `0.25`; allowed: empty, since clock_src and clock_dst \
                            differ: it follows from the anchors"
                    .to_owned()
            }
            _ => format!("column {column}: `{value}`; allowed: {allowed}"),
        };
        assert_eq!(wrong, format!("DIR/samples.csv:3, {expected}"));
    }
}

#[test]
fn a_folder_says_which_parts_it_lacks_and_what_stands_in_their_place() {
    let (_root, dir) = filled(1);
    let folder = Folder::open(&dir).unwrap();
    let metadata = |rank| Part::Metadata { rank };
    assert_eq!(folder.missing().unwrap(), [metadata(0), metadata(1)], "nobody wrote these");
    fs::remove_file(dir.join(TEMPERATURES)).unwrap();
    fs::remove_file(dir.join(ANCHORS)).unwrap();
    let missing = folder.missing().unwrap();
    assert_eq!(missing, [Part::Temperatures, Part::Anchors, metadata(0), metadata(1)]);
    assert_eq!(missing[1].to_string(), "anchors.csv");
    assert!(folder.anchors().unwrap().is_empty() && folder.temperatures().unwrap().is_empty());

    fs::create_dir(dir.join(ANCHORS)).unwrap();
    for error in [folder.missing().unwrap_err(), folder.anchors().unwrap_err()] {
        let error = error.to_string();
        assert!(error.ends_with("anchors.csv: is not a file; allowed: a file, or nothing"));
    }
}

#[test]
fn a_file_that_is_not_utf8_is_named_with_its_line() {
    for name in [PLAN, RUN, SAMPLES, "metadata_rank_0.yml"] {
        let (_root, dir) = filled(1);
        let metadata = b"rank: 0\npid: 1\n".as_slice();
        fs::write(dir.join("metadata_rank_0.yml"), metadata).unwrap();
        let path = dir.join(name);
        let mut bytes = fs::read(&path).unwrap();
        let at = bytes.iter().position(|byte| *byte == b'\n').unwrap() + 3;
        bytes[at] = 0xff;
        fs::write(&path, bytes).unwrap();
        let read = |folder: Folder| folder.samples().and_then(|_| folder.metadata(0));
        let error = Folder::open(&dir).and_then(read).unwrap_err();
        let place = format!(
            "{}:2: is not UTF-8 text: 0xff at byte {at} of the file; allowed: UTF-8",
            path.display()
        );
        assert_eq!(error.to_string(), place);
        assert!(matches!(error, ProfileError::Line { .. }), "it is no fault of the machine");
    }
}

#[test]
fn samples_of_another_plan_are_refused() {
    let (_root, dir) = filled(0);
    let recorder = Folder::resume(&dir).unwrap();
    let step = plan().steps()[0];
    let error = recorder.append(&Sample { configuration: 4, ..sample(&step) }).unwrap_err();
    assert_eq!(error.to_string(), "sample = `configuration 4`; allowed: 0 to 3");
    let error = recorder.append(&Sample { repetition: 3, ..sample(&step) }).unwrap_err();
    assert!(error.to_string().ends_with("allowed: 0 to 2"), "{error}");
    recorder.append(&sample(&step)).unwrap();
    assert!(recorder.append(&sample(&step)).is_err(), "not twice");
}

#[test]
fn numbers_that_could_not_be_read_back_are_refused_before_they_are_written() {
    let (_root, dir) = filled(1);
    let recorder = Folder::resume(&dir).unwrap();
    let step = plan().steps()[1];
    let wrong = Sample { t_host_ns: Some(f64::NAN), ..sample(&step) };
    let error = recorder.append(&wrong).unwrap_err().to_string();
    assert!(error.contains("samples.csv:3, column t_host_ns: `NaN`; allowed: a number"), "{error}");
    let wrong = Temperature { temperature_c: Some(f64::INFINITY), ..Temperature::default() };
    assert!(recorder.append_temperature(&wrong).is_err());
    recorder.append(&sample(&step)).unwrap();
    assert_eq!(recorder.folder().samples().unwrap().len(), 2);
}

#[test]
fn faults_of_the_plan_and_the_run_name_the_field() {
    let (_root, dir) = filled(0);
    let wrong = fault(&dir, PLAN, |text| text.replace("\"tcp\"", "\"udp\""));
    assert!(wrong.contains("plan.json:"), "{wrong}");
    assert!(
        wrong.contains("field configurations[0].path: `udp`; allowed: copy_engine, "),
        "{wrong}"
    );
    let (_root, dir) = filled(0);
    let wrong = fault(&dir, PLAN, |text| text.replacen("\"seed\": 42", "\"seed\": 43", 1));
    assert!(wrong.contains("field order_fnv1a64: "), "{wrong}");
    let (_root, dir) = filled(0);
    let wrong = fault(&dir, PLAN, |text| text[..text.len() / 2].to_owned());
    assert!(wrong.contains("plan.json:") && !wrong.contains('?'), "{wrong}");
    let wrong = fault(&dir, PLAN, |_| "no JSON".to_owned());
    assert!(wrong.starts_with("DIR/plan.json:1: is not JSON (expected"), "{wrong}");
    let (_root, dir) = filled(0);
    let wrong = fault(&dir, RUN, |text| text.replace("state: running", "state: walking"));
    assert!(wrong.contains("field state: `walking`; allowed: running, "), "{wrong}");
    let (_root, dir) = filled(0);
    let wrong = fault(&dir, RUN, |text| text.replace("schema_version: 1", "schema_version: 9"));
    assert!(
        wrong.ends_with("schema_version: `9` is of a newer version of Polyrail; allowed: 1"),
        "{wrong}"
    );
    for (good, bad, words) in [
        ("tick_ns: 1.0", "tick_ns: -1.0", "field clocks[0].tick_ns: `-1`; allowed: 0 to 1e9"),
        (
            "timer_floor_ns: {}",
            "timer_floor_ns: {t_gpu: -3}",
            "field timer_floor_ns.t_gpu: `-3`; allowed: ",
        ),
        ("clocks:", "clocks:\n  - {id: 0, name: x, kind: x, rank: null, tick_ns: 1}", "each once"),
    ] {
        let (_root, dir) = filled(0);
        let wrong = fault(&dir, RUN, |text| text.replacen(good, bad, 1));
        assert!(wrong.starts_with("DIR/run.yml:") && wrong.contains(words), "{wrong}");
        assert!(!wrong.contains("yml:0"), "{wrong}");
    }
}

/// Collects the places of all values, as JSON pointers.
fn places(value: &Value, place: String, all: &mut Vec<String>) {
    let mut below = |name: &str, value| {
        all.push(format!("{place}/{name}"));
        places(value, format!("{place}/{name}"), all);
    };
    match value {
        Value::Object(map) => map.iter().for_each(|(name, value)| below(name, value)),
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(at, value)| below(&at.to_string(), value))
        }
        _ => {}
    }
}

#[test]
fn every_wrong_field_of_every_file_is_told_in_words_for_people() {
    let (_root, dir) = filled(1);
    let metadata =
        Metadata { rank: 0, ..serde_json::from_value(json!({"rank": 0, "pid": 1})).unwrap() };
    Folder::resume(&dir).unwrap().write_metadata(&metadata).unwrap();
    let wrong = [
        json!("x\u{1b}"),
        json!(null),
        json!(-1),
        json!(1.5),
        json!(true),
        json!([]),
        json!({"x": 1}),
        json!("y".repeat(5000)),
        json!(u64::MAX),
    ];
    let mut refused = 0;
    for name in [PLAN, RUN, "metadata_rank_0.yml"] {
        let path = dir.join(name);
        let good = fs::read_to_string(&path).unwrap();
        let value: Value = match name {
            PLAN => serde_json::from_str(&good).unwrap(),
            _ => crate::yaml::read(&good, &path).unwrap().0,
        };
        let mut all = Vec::new();
        places(&value, String::new(), &mut all);
        let mut tried: Vec<Value> = Vec::new();
        for place in &all {
            tried.extend(wrong.iter().map(|wrong| {
                let mut changed = value.clone();
                *changed.pointer_mut(place).unwrap() = wrong.clone();
                changed
            }));
            let (parent, name) = place.rsplit_once('/').unwrap();
            let mut without = value.clone();
            if let Some(map) = without.pointer_mut(parent).unwrap().as_object_mut() {
                let moved = map.remove(name).unwrap();
                tried.push(without.clone());
                without.pointer_mut(parent).unwrap()["no_such_field"] = moved;
                tried.push(without);
            }
        }
        let texts = tried.iter().map(|value| match name {
            PLAN => serde_json::to_string_pretty(value).unwrap(),
            _ => crate::yaml::write(value).unwrap(),
        });
        let cut =
            [good[..good.len() / 2].to_owned(), String::new(), "[".into(), "[]".into(), "5".into()];
        for text in texts.chain(cut) {
            fs::write(&path, &text).unwrap();
            let read = Folder::open(&dir).and_then(|folder| folder.metadata(0));
            let Err(error) = read else { continue };
            refused += 1;
            let message = error.to_string();
            assert!(message.contains(name) && message.contains("; allowed: "), "{message}");
            assert!(message.len() < 1000 && error.help().is_some(), "{message}");
            for jargon in [
                ":0",
                "line 0",
                "expected ",
                "struct",
                "variant",
                "u32",
                "u64",
                "f64",
                "i64",
                "\u{1b}",
            ] {
                let is_syntax = message.contains("is not JSON (") || message.contains("YAML as ");
                assert!(is_syntax || !message.contains(jargon), "{jargon:?} in {message}");
            }
        }
        fs::write(&path, good).unwrap();
    }
    assert!(refused > 300, "{refused}");
}

#[test]
fn a_file_of_a_newer_version_is_refused_for_that_and_not_for_its_new_fields() {
    for (name, new) in
        [(PLAN, "\"schema_version\": 2,\n\"moods\": [],"), (RUN, "schema_version: 2\nmoods: []")]
    {
        let (_root, dir) = filled(0);
        let wrong = fault(&dir, name, |text| {
            let old = if name == PLAN { "\"schema_version\": 1," } else { "schema_version: 1" };
            assert!(text.contains(old));
            text.replacen(old, new, 1)
        });
        let words = "field schema_version: `2` is of a newer version of Polyrail; allowed: 1";
        assert!(wrong.ends_with(words), "{wrong}");
        let error = Folder::open(&dir).unwrap_err();
        assert!(error.help().unwrap().contains("version of Polyrail that wrote it"));
    }
}

#[test]
fn logs_of_devices_clocks_and_endpoints_read_back() {
    let (_root, dir) = filled(0);
    let recorder = Folder::resume(&dir).unwrap();
    let look = Temperature {
        at_ns: 7,
        rank: 1,
        temperature_c: Some(55.5),
        power_w: Some(300.25),
        clock_reasons: Some(0x44),
        ..Temperature::default()
    };
    recorder.append_temperature(&look).unwrap();
    let anchor = Anchor {
        clock: 1,
        parent: 0,
        window: 3,
        method: AnchorMethod::Edge,
        parent_before_ns: -5,
        clock_ns: 100,
        parent_after_ns: 5,
    };
    recorder.append_anchor(&anchor).unwrap();
    let metadata = Metadata {
        rank: 1,
        pid: 77,
        model: Some("NVIDIA H200".into()),
        uuid: None,
        pci_address: Some("0000:19:00.0".into()),
        numa_node: Some(1),
        driver: Some("570.1".into()),
        details: [("ecc".to_owned(), true.into())].into(),
    };
    recorder.write_metadata(&metadata).unwrap();
    let folder = recorder.folder();
    assert_eq!(folder.temperatures().unwrap(), [look]);
    assert!(look.is_throttled());
    assert_eq!(folder.anchors().unwrap(), [anchor]);
    assert_eq!(folder.metadata(1).unwrap(), Some(metadata.clone()));
    assert_eq!(folder.metadata(0).unwrap(), None);
    assert!(recorder.write_metadata(&Metadata { rank: 2, ..metadata }).is_err());
    let error = folder.alignment().unwrap_err().to_string();
    let unlisted = "anchors.csv: clock 1: has anchors and is not listed in run.yml";
    assert!(error.ends_with(unlisted), "{error}");
    recorder.append_temperature(&Temperature { rank: 2, ..look }).unwrap();
    let error = folder.temperatures().unwrap_err().to_string();
    assert!(error.ends_with("temperatures.csv:3, column rank: `2`; allowed: 0 to 1"), "{error}");
    let path = dir.join(ANCHORS);
    fs::write(&path, fs::read_to_string(&path).unwrap() + "1,0,3,edge,5,100,-5\n").unwrap();
    let error = folder.anchors().unwrap_err().to_string();
    assert!(error.contains("column parent_after_ns: `-5`; allowed: from 5 on"), "{error}");
}

#[test]
fn threads_may_record_at_the_same_time() {
    let (_root, dir) = filled(0);
    let recorder = Folder::resume(&dir).unwrap();
    let steps = recorder.remaining();
    std::thread::scope(|scope| {
        for part in steps.chunks(3) {
            let recorder = &recorder;
            scope.spawn(move || {
                part.iter().for_each(|step| recorder.append(&sample(step)).unwrap())
            });
        }
    });
    assert_eq!(recorder.folder().samples().unwrap().len(), steps.len());
}
