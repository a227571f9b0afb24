//! Programs in C and C++: the examples, and programs that misuse the interface. They are built by each compiler of this
//! machine, and run plain, under valgrind, and with the address sanitizer.

use std::path::Path;
use std::sync::Mutex;
use std::thread;

use crate::build::{STATIC, build, command, compilers, done, has, installed, skipped, told};

/// A program, and the text that it prints at its end.
#[derive(Clone, Copy)]
struct Program {
    source: &'static str,
    says: &'static str,
    /// Arguments for runs under valgrind and the sanitizers, if it runs under them. Valgrind makes a program some 50
    /// times slower, so these avoid 100,000 segments.
    watched: Option<&'static [&'static str]>,
}

const PROGRAMS: [Program; 11] = [
    Program { source: "examples/hello", says: "4194304 bytes are in place", watched: Some(&[]) },
    Program {
        source: "examples/segments",
        says: "blocks there and back",
        watched: Some(&["1000"]),
    },
    Program { source: "examples/messages", says: "the third one: cancelled", watched: Some(&[]) },
    Program { source: "examples/events", says: "20 notifications", watched: Some(&[]) },
    Program { source: "examples/groups", says: "one is alone again", watched: Some(&[]) },
    Program { source: "tests/c/groups", says: "groups are told apart", watched: Some(&[]) },
    Program {
        source: "tests/c/misuse",
        says: "all bad input is refused",
        watched: Some(&["1500"]),
    },
    Program { source: "tests/c/ends", says: "all ends are told", watched: Some(&[]) },
    Program {
        source: "tests/c/protected",
        says: "read-only memory takes no writes",
        watched: Some(&[]),
    },
    Program { source: "tests/c/looks", says: "100000 looks without a system call", watched: None },
    Program { source: "tests/c/forks", says: "both processes go on", watched: None },
];

const VALGRIND: [&str; 5] = [
    "valgrind",
    "-q",
    "--error-exitcode=9",
    "--leak-check=full",
    "--errors-for-leak-kinds=definite,indirect",
];

/// Runs `work` on all items, two at a time.
fn each<T: Sync>(all: &[T], work: impl Fn(&T) + Sync) {
    let left = Mutex::new(all.iter());
    let next = || left.lock().unwrap().next();
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(one) = next() {
                    work(one);
                }
            });
        }
    });
}

/// One process has a table, the other reads it.
fn two_processes(program: &Path, under: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("metadata");
    let file = file.to_str().unwrap();
    let mut serve = command(program, under, &["serve", file]);
    thread::scope(|scope| {
        let served = scope.spawn(|| done(&mut serve));
        let fetched = done(&mut command(program, under, &["fetch", file]));
        assert!(fetched.contains("1048576 bytes are right"), "{fetched}");
        let served = served.join().unwrap();
        assert!(served.contains("the other end says: thanks"), "{served}");
    });
}

#[test]
fn every_compiler_takes_every_program_and_it_runs() {
    let compilers = match compilers() {
        Ok(compilers) => compilers,
        Err(reason) => return skipped(&reason),
    };
    let pairs: Vec<_> =
        compilers.iter().flat_map(|compiler| PROGRAMS.map(|program| (compiler, program))).collect();
    each(&pairs, |(compiler, program)| {
        let built = build(program.source, compiler, &[]);
        let said = done(&mut command(&built, &[], &[]));
        assert!(said.contains(program.says), "{} by {compiler:?}: {said}", program.source);
    });
    for compiler in &compilers {
        two_processes(&build("examples/two_processes", compiler, &[]), &[]);
        // Without a GPU the program reports that.
        let output = command(&build("examples/cuda", compiler, &[]), &[], &[]).output().unwrap();
        let said = told(&output);
        match output.status.code() {
            Some(0) => assert!(said.contains("bytes are right on the GPU"), "{said}"),
            code => assert!(code == Some(77) && said.contains("no GPU"), "{said}"),
        }
    }
}

#[test]
fn the_static_library_needs_no_other() {
    let compilers = match compilers() {
        Ok(compilers) => compilers,
        Err(reason) => return skipped(&reason),
    };
    let built = build("examples/hello", &compilers[0], &[STATIC]);
    let mut run = command(&built, &[], &[]);
    let said = done(run.env("LD_LIBRARY_PATH", "/none"));
    assert!(said.contains("4194304 bytes are in place"), "{said}");
}

#[test]
fn valgrind_finds_nothing() {
    let compilers = match has("valgrind").and_then(|()| compilers()) {
        Ok(compilers) => compilers,
        Err(reason) => return skipped(&reason),
    };
    let known = installed().join("known-to-valgrind.supp");
    std::fs::write(&known, known_to_valgrind()).unwrap();
    let known = format!("--suppressions={}", known.display());
    let under = [&VALGRIND[..], &[&known]].concat();
    each(&PROGRAMS, |program| {
        let Some(arguments) = program.watched else { return };
        let built = build(program.source, &compilers[0], &["-O1"]);
        let said = done(&mut command(&built, &under, arguments));
        assert!(said.contains(program.says), "{}: {said}", program.source);
    });
    two_processes(&build("examples/two_processes", &compilers[0], &["-O1"]), &under);

    let faults = build("tests/c/faults", &compilers[0], &["-O1"]);
    for (fault, words) in [("leak", "definitely lost"), ("freed", "Invalid read")] {
        let output = command(&faults, &under, &[fault]).output().unwrap();
        let said = told(&output);
        assert!(output.status.code() == Some(9) && said.contains(words), "{fault}: {said}");
    }
}

/// Valgrind treats the tags made by the cipher's assembly as uninitialised, though the other end opens the sealed data.
/// So it complains where they are compared, and where records are sent. It also knows only the first of the two
/// structures that `capget` fills.
fn known_to_valgrind() -> String {
    let entry = |kind: &str, what: &str, function: &str| {
        format!("{{\n  tag\n  Memcheck:{kind}\n{what}  ...\n  fun:*{function}*\n  ...\n}}\n")
    };
    // The maximum number of pieces per call.
    let pieces = (0..1024).map(|piece| format!("sendmsg(msg.msg_iov[{piece}])"));
    let sent = pieces.chain(["socketcall.sendto(msg)".to_owned()]);
    let sent = sent.map(|sent| entry("Param", &format!("  {sent}\n"), "polyrail_sys"));
    let compared =
        ["verify_slices_are_equal", "is_privileged"].map(|function| entry("Cond", "", function));
    compared.concat() + &sent.collect::<String>()
}

#[test]
fn the_sanitizers_find_nothing() {
    let compilers = match compilers() {
        Ok(compilers) => compilers,
        Err(reason) => return skipped(&reason),
    };
    let options = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    let watched: Vec<_> = PROGRAMS.iter().filter(|program| program.watched.is_some()).collect();
    each(&watched, |program| {
        let built = build(program.source, &compilers[0], &options);
        let said = done(&mut command(&built, &[], &[]));
        assert!(said.contains(program.says), "{}: {said}", program.source);
    });
    two_processes(&build("examples/two_processes", &compilers[0], &options), &[]);

    let faults = build("tests/c/faults", &compilers[0], &options);
    for (fault, words) in [("leak", "LeakSanitizer"), ("freed", "heap-use-after-free")] {
        let output = command(&faults, &[], &[fault]).output().unwrap();
        let said = told(&output);
        assert!(!output.status.success() && said.contains(words), "{fault}: {said}");
    }
}
