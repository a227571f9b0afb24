//! Run inside a lab: the serving end in one namespace, the measuring end in the other.

use std::env;
use std::io;
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use polyrail::Config;
use polyrail_lab::{Rate, Side};
use polyrail_report::exit;

use super::spawn::Served;
use crate::cmd::bench::options::{MemoryKind, Placed};
use crate::crew::{Output, Worker};
use crate::fault::Fault;
use crate::own_labs;
use crate::signals;

/// Builds a lab of these rails, measures in it, and removes it. Returns the client's exit code.
pub(crate) fn run_in_lab(
    rates: Vec<Rate>,
    config: &Config,
    placed: &Placed,
    peer_memory: MemoryKind,
) -> Result<u8, Fault> {
    let asked = signals::caught().map_err(|source| Fault::system("catching signals", source))?;
    let program =
        env::current_exe().map_err(|source| Fault::system("finding this program", source))?;

    let lab = own_labs::up("bench", None, rates)?;
    let mut server = Served::start(lab.command(Side::B, &program), config, placed, peer_memory)?;
    let mut client = lab.command(Side::A, &program);
    client
        .args(env::args_os().skip(1))
        .arg("--inside-lab")
        .arg(server.server.addresses[0].to_string());
    let client = Worker::start(client, Stdio::piped(), [Output::Ours; 2]);
    let status = client.and_then(|client| wait(client, &asked));
    let status = status.map_err(|source| Fault::system("running the client", source))?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    // A signal ended the client if there is no code.
    let code = code.unwrap_or(exit::INTERRUPTED);
    if code == exit::INTERRUPTED {
        server.hurry();
    }
    drop(server);
    lab.down()?;
    Ok(code)
}

/// Waits for the client and forwards requests to end. Ctrl-C also reaches the client itself, and a second one ends it
/// at once. So the first request is not forwarded as a signal: it closes the client's standard input. The second
/// request kills the client.
fn wait(mut client: Worker, asked: &AtomicBool) -> io::Result<ExitStatus> {
    loop {
        if let Some(status) = client.ended(Duration::from_millis(20))? {
            return Ok(status);
        }
        if asked.swap(false, Ordering::Relaxed) && !client.close() {
            client.kill();
        }
    }
}
