//! The end of a program: an error's text and help, and the exit code.

use std::error::Error;
use std::io::{Write, stderr};
use std::process::ExitCode;

use polyrail_config::{ConfigError, harmless};
use polyrail_gpu::GpuError;
use polyrail_proto::error::{PeerError, PostError, TransferError};
use polyrail_proto::invitation::InvitationError;

use crate::api::error::{EngineError, Explain, RegionError};
use crate::base::certificate_files::CertificatesError;
use crate::base::secret_file::SecretFileError;

/// The exit code for errors that are not of this crate.
const OTHER: u8 = 1;

/// Prints an error on standard error as the `polyrail` command does, with its causes and advice on how to fix it, and
/// returns the exit code for `main`: 2 usage or configuration, 3 environment, 4 peer or transfer, 1 for errors of
/// other crates, 0 for `Ok`.
///
/// ```no_run
/// use std::error::Error;
/// use std::process::ExitCode;
///
/// use polyrail::{Config, Engine};
///
/// fn main() -> ExitCode {
///     polyrail::exit(run())
/// }
///
/// fn run() -> Result<(), Box<dyn Error>> {
///     let config = Config::builder().env().build()?;
///     println!("{}", Engine::builder().config(config).build()?.stats());
///     Ok(())
/// }
/// ```
pub fn exit(result: Result<(), Box<dyn Error>>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    let (text, code) = explained(&*error);
    // The exit code still says that the program failed.
    let _ = stderr().write_all(harmless(&text, &['\n', '\t']).as_bytes());
    ExitCode::from(code)
}

/// The lines about an error, and the exit code.
fn explained(error: &(dyn Error + 'static)) -> (String, u8) {
    let mut message = error.to_string();
    let mut known = None;
    let mut next = Some(error);
    while let Some(error) = next {
        let text = error.to_string();
        // Most errors have the text of their cause in their own.
        if !message.contains(&text) {
            message = format!("{message}: {text}");
        }
        known = known.or_else(|| of_this_crate(error));
        next = error.source();
    }
    let help =
        known.and_then(Explain::help).map_or(String::new(), |help| format!("help: {help}\n"));
    (format!("error: {message}\n{help}"), known.map_or(OTHER, Explain::exit_code))
}

fn of_this_crate<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a dyn Explain> {
    fn is<'a, E: Explain + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a dyn Explain> {
        error.downcast_ref::<E>().map(|error| error as &dyn Explain)
    }
    is::<ConfigError>(error)
        .or_else(|| is::<EngineError>(error))
        .or_else(|| is::<RegionError>(error))
        .or_else(|| is::<PeerError>(error))
        .or_else(|| is::<PostError>(error))
        .or_else(|| is::<TransferError>(error))
        .or_else(|| is::<InvitationError>(error))
        .or_else(|| is::<GpuError>(error))
        .or_else(|| is::<CertificatesError>(error))
        .or_else(|| is::<SecretFileError>(error))
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    /// An error of another crate, around one of this crate or of the system.
    #[derive(Debug, thiserror::Error)]
    #[error("the job ended")]
    struct Job(#[source] Box<dyn Error>);

    #[test]
    fn an_error_is_printed_with_its_causes_and_help_and_has_the_code_of_its_kind() {
        let config = || polyrail_config::Config::builder().set("ops_pool", "none").unwrap_err();
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let secrets = || SecretFileError::Read { path: "/a/b".into(), source: missing() };
        let cases: Vec<(Box<dyn Error>, &str, bool, u8)> = vec![
            (config().into(), "error: ops_pool = `none`", true, 2),
            (EngineError::Config(config()).into(), "error: ops_pool = `none`", true, 2),
            (EngineError::Secrets(secrets()).into(), "error: secret_file /a/b: ", true, 2),
            (secrets().into(), "error: /a/b: ", true, 2),
            (EngineError::Forked.into(), "error: the engine belongs", true, 3),
            (RegionError::Closed.into(), "error: the engine is closed\n", true, 4),
            (PeerError::Myself.into(), "error: the metadata is", true, 4),
            (PostError::RegionDropped.into(), "error: a local region", true, 4),
            (TransferError::Cancelled.into(), "error: cancelled\n", false, 4),
            (InvitationError { characters: 2 }.into(), "error: an invitation has 2 ", true, 2),
            (GpuError::OwnExport.into(), "error: memory can't be imported", true, 3),
            (missing().into(), "error: entity not found\n", false, 1),
            ("no\u{1b}[2J".into(), "error: no\\u001b[2J\n", false, 1),
            (Job(PeerError::Closed.into()).into(), "error: the job ended: the engine is", true, 4),
            (Job(missing().into()).into(), "error: the job ended: entity not found\n", false, 1),
        ];
        for (error, text, has_help, code) in cases {
            let (said, found) = explained(&*error);
            let said = harmless(&said, &['\n']);
            assert!(said.starts_with(text), "{said}");
            assert_eq!((said.contains("\nhelp: "), found), (has_help, code), "{said}");
            assert!(said.ends_with('\n') && !said.contains("\n\n"), "{said:?}");
        }
    }

    #[test]
    fn debug_shows_the_text_and_the_help_and_no_field() {
        fn check<E: Explain>(error: &E) {
            let help = error.help().map_or(String::new(), |help| format!("\nhelp: {help}"));
            assert_eq!(format!("{error:?}"), format!("{error}{help}"));
        }
        let config = polyrail_config::Config::builder().set("ops_pool", "none").unwrap_err();
        check(&config);
        let ConfigError::Value(bad) = &config else { panic!("{config}") };
        let help = bad.remedy.as_ref().map_or(String::new(), |help| format!("\nhelp: {help}"));
        assert_eq!(format!("{bad:?}"), format!("{bad}{help}"));
        check(&EngineError::Config(config));
        check(&RegionError::Closed);
        check(&PeerError::Myself);
        check(&PostError::Busy { limit: 1 });
        check(&TransferError::TooLong { len: 2, capacity: 1 });
        check(&TransferError::Cancelled);
        check(&GpuError::OwnExport);
        check(&GpuError::BadExport { reason: "is short" });
        check(&InvitationError { characters: 2 });
        let source = io::Error::from(io::ErrorKind::NotFound);
        let secrets = SecretFileError::Read { path: "/a/b".into(), source };
        check(&secrets);
        check(&CertificatesError::Key(secrets));
        assert_eq!(TransferError::Cancelled.variant(), "Cancelled");
        assert_eq!(PostError::Busy { limit: 1 }.variant(), "Busy");
    }
}
