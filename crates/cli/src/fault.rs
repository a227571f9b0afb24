//! The error of a command: a message, a help line, and an exit code.

mod mismatch;

use std::io;
use std::process::ExitCode;

use polyrail::{EngineError, Explain, GpuError, LostReason, PeerError};
#[cfg(feature = "all-commands")]
use polyrail_analyze::AnalyzeError;
#[cfg(feature = "all-commands")]
use polyrail_collective::RankError;
use polyrail_config::ConfigError;
#[cfg(feature = "all-commands")]
use polyrail_doctor::DoctorError;
use polyrail_experiment::ExperimentError;
use polyrail_lab::LabError;
use polyrail_log::LogError;
use polyrail_nccl_abi::{LoadError, NetError};
use polyrail_nccl_ref::RefError;
use polyrail_profile::ProfileError;
use polyrail_profiler::ProfilerError;
#[cfg(feature = "all-commands")]
use polyrail_rendezvous::RendezvousError;
use polyrail_report::exit;
use polyrail_sample::SampleError;
#[cfg(feature = "all-commands")]
use polyrail_tune::TuneError;
use serde::{Deserialize, Serialize};

pub(crate) use self::mismatch::Mismatch;
use crate::config_args::code_of_log;
use crate::stdout::{self, excerpt, one_line};
use crate::unwritten::Unwritten;

/// Error that ends a command or one of its processes. Processes send it to each other without its cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Fault {
    pub(crate) message: String,
    pub(crate) help: Option<String>,
    /// One of [`exit`].
    pub(crate) code: u8,
    #[serde(skip)]
    pub(crate) cause: Cause,
}

/// Causes that a command handles in its own way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Cause {
    #[default]
    Other,
    /// The user interrupted the command.
    Interrupted,
    /// Another process did not do its part in time.
    Late,
    /// The peer's engine is gone.
    Gone(Box<LostReason>),
    /// Another client is being served at the other end.
    Busy,
    /// A worker ended early, or reported that it failed.
    Ended,
    /// Data arrived wrong.
    Mismatch(Mismatch),
    /// Another process has printed the error.
    Told,
}

impl Fault {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Self { message: message.into(), help: None, code, cause: Cause::Other }
    }

    /// The user interrupted the command, for example with Ctrl-C.
    pub(crate) fn interrupted() -> Self {
        Self { cause: Cause::Interrupted, ..Self::new(exit::INTERRUPTED, "interrupted") }
    }

    pub(crate) fn is_interrupted(&self) -> bool {
        self.cause == Cause::Interrupted
    }

    /// Error with the command's own message, and with the code and the help of its cause.
    pub(crate) fn explained(message: impl Into<String>, error: &impl Explain) -> Self {
        Self { help: error.help(), ..Self::new(error.exit_code(), message) }
    }

    /// Error [`heard`](Self::heard) from another process or host, with its name in front.
    pub(crate) fn of_peer(who: &str, fault: Self) -> Self {
        Self::heard(fault).about(who)
    }

    /// Error that another process or host sent. Its text can neither forge lines or a success nor fill the terminal.
    pub(crate) fn heard(fault: Self) -> Self {
        let code = match fault.code {
            exit::USAGE | exit::ENVIRONMENT | exit::DATA | exit::INTERRUPTED => fault.code,
            _ => exit::PEER,
        };
        let message = one_line(&fault.message, SAID_MAX);
        let help = fault.help.map(|help| one_line(&help, SAID_MAX));
        Self { help, ..Self::new(code, message) }
    }

    /// Another process has printed the error, and ended with this code.
    pub(crate) fn told(code: u8) -> Self {
        Self { cause: Cause::Told, ..Self::new(code, "another process has told why") }
    }

    /// The system refused a step. `step` is a noun phrase in front of "failed".
    pub(crate) fn system(step: impl Into<String>, source: io::Error) -> Self {
        let fault = Self::environment(format!("{} failed: {source}", step.into()));
        match source.kind() {
            io::ErrorKind::PermissionDenied => fault.with_help(
                "this user, or a rule of the container, may not do that: run it as a user who may",
            ),
            io::ErrorKind::OutOfMemory => {
                fault.with_help("raise the limit of memory (ulimit -v, that of the container)")
            }
            _ => fault,
        }
    }

    /// Refuses a value. An empty `value` stands for an option that has no value or is left out.
    pub(crate) fn usage(
        option: &str,
        value: impl ToString,
        reason: impl AsRef<str>,
        allowed: impl AsRef<str>,
    ) -> Self {
        let (value, reason, allowed) = (value.to_string(), reason.as_ref(), allowed.as_ref());
        let value = if value.is_empty() { value } else { format!(" `{}`", excerpt(&value)) };
        Self::new(exit::USAGE, format!("{option}{value}: {reason}; allowed: {allowed}"))
    }

    /// Reports that this machine lacks something.
    pub(crate) fn environment(message: impl Into<String>) -> Self {
        Self::new(exit::ENVIRONMENT, message)
    }

    pub(crate) fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Prefixes the message with the process or the pair that failed.
    pub(crate) fn about(mut self, what: &str) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }

    /// Prints the fault on standard error unless another process has printed it, and returns the exit code.
    pub(crate) fn refuse(self) -> ExitCode {
        if self.cause == Cause::Told {
            return ExitCode::from(self.code);
        }
        stdout::refuse(&self, self.help.clone(), self.code)
    }
}

/// Maximum number of characters to show of a message or a help line of another process.
const SAID_MAX: usize = 1000;

/// Converts these errors into faults: their text, with the exit code and the help from this table.
macro_rules! faults {
    ($($error:ty => |$it:ident| $code:expr, $help:expr;)+) => {$(
        impl From<$error> for Fault {
            fn from($it: $error) -> Self {
                let (code, help) = ($code, $help);
                Self { help, ..Self::new(code, $it.to_string()) }
            }
        }
    )+};
}

faults! {
    ConfigError => |it| it.exit_code(), it.help();
    EngineError => |it| it.exit_code(), it.help();
    ExperimentError => |it| exit::USAGE, it.help();
    GpuError => |it| it.exit_code(), it.help();
    LabError => |it| of_lab(&it), it.help();
    LoadError => |it| exit::ENVIRONMENT, Some(it.help());
    LogError => |it| code_of_log(&it), Some(it.help().to_owned());
    PeerError => |it| it.exit_code(), it.help();
    ProfileError => |it| of_profile(&it), it.help();
    ProfilerError => |it| of_profiler(&it), it.help();
    RefError => |it| exit::ENVIRONMENT, it.help();
    Unwritten => |it| it.exit_code(), Some(it.help());
}

#[cfg(feature = "all-commands")]
faults! {
    AnalyzeError => |it| of_analysis(&it), it.help();
    DoctorError => |it| of_doctor(&it), it.help();
    RendezvousError => |it| it.exit_code(), it.help();
    TuneError => |it| of_tune(&it), it.help();
}

#[cfg(feature = "all-commands")]
impl From<RankError> for Fault {
    fn from(error: RankError) -> Self {
        let is_late = matches!(error, RankError::Late { .. });
        let cause = if is_late { Cause::Late } else { Cause::Other };
        Self { cause, ..Self::new(of_rank(&error), error.to_string()) }
    }
}

impl From<SampleError> for Fault {
    fn from(error: SampleError) -> Self {
        let code = match error {
            SampleError::Write { path, source } => return Unwritten::at(&path)(source).into(),
            SampleError::Interval { .. }
            | SampleError::NoInterface { .. }
            | SampleError::NoProcess { .. }
            | SampleError::Exists { .. } => exit::USAGE,
            _ => exit::ENVIRONMENT,
        };
        Self { help: error.help(), ..Self::new(code, error.to_string()) }
    }
}

fn of_lab(error: &LabError) -> u8 {
    use polyrail_lab::Blame;
    match error.blame() {
        Blame::Input => exit::USAGE,
        Blame::Environment => exit::ENVIRONMENT,
        Blame::Stop => exit::INTERRUPTED,
    }
}

fn of_profile(error: &ProfileError) -> u8 {
    match error {
        ProfileError::Io { source, .. } => exit::of_io(source),
        _ => exit::USAGE,
    }
}

fn of_profiler(error: &ProfilerError) -> u8 {
    match error {
        ProfilerError::Profile(error) => of_profile(error),
        ProfilerError::Choice { .. } => exit::USAGE,
        ProfilerError::NoEngine(error) => error.exit_code(),
        ProfilerError::Engine { .. } => exit::PEER,
        _ => exit::ENVIRONMENT,
    }
}

#[cfg(feature = "all-commands")]
fn of_analysis(error: &AnalyzeError) -> u8 {
    match error {
        AnalyzeError::Io { source, .. } => exit::of_io(source),
        AnalyzeError::Profile(error) => of_profile(error),
        _ => exit::USAGE,
    }
}

#[cfg(feature = "all-commands")]
fn of_doctor(error: &DoctorError) -> u8 {
    match error {
        DoctorError::Tune(error) => of_tune(error),
        // The host is unchanged.
        DoctorError::ByHand { .. } | DoctorError::NothingToFix { .. } => exit::VERDICT,
        DoctorError::Machine(_) => exit::ENVIRONMENT,
        DoctorError::Unreadable { source, .. } => exit::of_io(source),
        _ => exit::USAGE,
    }
}

#[cfg(feature = "all-commands")]
fn of_rank(error: &RankError) -> u8 {
    match error {
        RankError::Memory { .. } | RankError::NoDevice => exit::ENVIRONMENT,
        RankError::Net(NetError::Missing { .. } | NetError::NoVersion { .. }) => exit::ENVIRONMENT,
        RankError::Length { .. } => exit::DATA,
        _ => exit::PEER,
    }
}

#[cfg(feature = "all-commands")]
fn of_tune(error: &TuneError) -> u8 {
    use polyrail_tune::Blame;
    match error.blame() {
        Blame::Input => exit::USAGE,
        Blame::Environment => exit::ENVIRONMENT,
        Blame::Stop => exit::INTERRUPTED,
    }
}

#[cfg(all(test, feature = "all-commands"))]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn an_error_of_a_library_keeps_its_text_and_its_help_and_has_the_code_of_its_kind() {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let denied = || io::Error::from(io::ErrorKind::PermissionDenied);
        let path = || PathBuf::from("/a/b");
        let read = |source| ProfileError::Io { action: "read", path: path(), source };
        let id = || "fq".to_owned();
        let config = || polyrail::Config::builder().set("ops_pool", "none").unwrap_err();
        let check = |fault: Fault, text: &str, help: Option<&str>, code: u8| {
            assert!(fault.message.contains(text), "{fault:?}");
            assert_eq!(fault.code, code, "{fault:?}");
            match (help, &fault.help) {
                (None, found) => assert_eq!(found, &None, "{fault:?}"),
                (Some(help), found) => {
                    assert!(found.as_deref().is_some_and(|it| it.contains(help)), "{fault:?}");
                }
            }
        };
        let environment = exit::ENVIRONMENT;
        check(config().into(), "ops_pool", config().help().as_deref(), exit::USAGE);
        check(EngineError::Forked.into(), "forked", Some("fork"), environment);
        let myself = PeerError::Myself;
        check(PeerError::Myself.into(), "own", myself.help().as_deref(), exit::PEER);
        let log = LogError::Open { path: path(), source: denied() };
        check(log.into(), "log_file", Some("%h"), environment);
        check(read(missing()).into(), "can't read /a/b", None, exit::USAGE);
        check(AnalyzeError::from(read(denied())).into(), "can't read /a/b", None, environment);
        let not_empty = ProfileError::NotEmpty { dir: path() };
        check(not_empty.into(), "not empty", Some("--resume"), exit::USAGE);
        check(ProfilerError::from(read(missing())).into(), "can't read /a/b", None, exit::USAGE);
        check(RefError::GivenUp.into(), "given up", None, environment);
        let nothing = DoctorError::NothingToFix { id: id(), said: id() };
        check(nothing.into(), "to fix", None, exit::VERDICT);
        let stopped = DoctorError::from(TuneError::Stopped);
        check(stopped.into(), "stopped", None, exit::INTERRUPTED);
        let no_check = DoctorError::NoCheck { id: id() };
        check(no_check.into(), "`fq`", Some("--explain"), exit::USAGE);
        check(TuneError::BadPlan { reason: id() }.into(), "the plan fq", None, exit::USAGE);
        let lab = LabError::Interrupted { name: id() };
        check(lab.into(), "`fq`", Some("lab up fq"), exit::INTERRUPTED);
        check(LoadError::NoTable { name: id() }.into(), "no ncclNet", Some("nm -D"), environment);
        let short = RankError::Length { from: 0, got: 1, wanted: 2 };
        check(short.into(), "1 bytes", None, exit::DATA);
        check(RankError::NoDevice.into(), "no device", None, environment);
        check(RendezvousError::NotSet.into(), "rendezvous", Some("dir://"), exit::USAGE);
        check(SampleError::NoProcess { pid: 7 }.into(), "`7`", Some("pidof"), exit::USAGE);
        let unwritten = SampleError::Write { path: path(), source: missing() };
        check(unwritten.into(), "can't write to /a/b", Some("make the folder"), exit::USAGE);
    }

    #[test]
    fn an_error_of_a_peer_forges_neither_lines_nor_a_success() {
        let said = |code| Fault::new(code, "no\npolyrail: all is well").with_help("a\u{1b}b\nc");
        for (code, shown) in [(0, 4), (1, 4), (2, 2), (3, 3), (4, 4), (5, 5), (77, 4), (130, 130)] {
            assert_eq!(Fault::of_peer("node1", said(code)).code, shown);
        }
        let fault = Fault::of_peer("node1", said(exit::PEER));
        assert_eq!(fault.message, "node1: no\\u000apolyrail: all is well");
        assert_eq!(fault.help.as_deref(), Some("a\\u001bb\\u000ac"));
        let long = Fault::new(exit::PEER, "x".repeat(1 << 20)).with_help("y".repeat(1 << 20));
        let fault = Fault::of_peer("node1", long);
        assert!(fault.message.len() < 2 * SAID_MAX, "{}", fault.message.len());
        assert!(fault.help.is_some_and(|help| help.len() < 2 * SAID_MAX));
    }

    #[test]
    fn a_lack_of_memory_of_an_engine_is_the_environment() {
        let source = io::Error::from(io::ErrorKind::OutOfMemory);
        let error = EngineError::System { what: "taking memory", source };
        assert_eq!(Fault::from(error).code, exit::ENVIRONMENT);
    }

    #[test]
    fn a_value_that_can_t_be_used_is_named_with_its_option() {
        let fault = Fault::usage("PID", 7, "no such process", "a process").with_help("look");
        assert_eq!(fault.to_string(), "PID `7`: no such process; allowed: a process");
        assert_eq!((fault.help.as_deref(), fault.code), (Some("look"), exit::USAGE));
    }
}
