//! Two engines whose rails are devices of the test plugin. Carried bytes arrive, and the plugin's faults end no engine.
//!
//! The test plugin reads the environment, so each test runs its body in a separate process.

mod carried;
mod lanes;
mod near;
mod silent;
mod stuck;
mod threads;
mod trouble;

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use polyrail::{Config, Engine, EngineError, Peer, Stats};

const DEADLINE: Duration = Duration::from_secs(60);
/// Set in processes that run a body.
const INSIDE: &str = "HOSTED_INSIDE";

/// Runs the body of this test in another process, with these variables for the test plugin.
pub(crate) fn inside(test: &str, variables: &[(&str, &str)], body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        // An engine that hangs would also hang when it is dropped, after the test has failed.
        std::thread::spawn(|| {
            // The sleep is the time limit itself.
            std::thread::sleep(2 * DEADLINE);
            eprintln!("the test does not end");
            std::process::abort();
        });
        return body();
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(INSIDE, "1");
    command.envs(variables.iter().copied());
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "there is no test of that name: {text}");
}

/// The test plugin's name in an engine's settings.
pub(crate) fn double() -> String {
    format!("plugin:{}", library().display())
}

/// Path of the test plugin: cargo puts it beside the test programs.
pub(crate) fn library() -> PathBuf {
    let deps = std::env::current_exe().unwrap();
    let path: PathBuf = deps.parent().unwrap().join("libnccl_net_scatter.so");
    assert!(path.is_file(), "{} is not there", path.display());
    path
}

pub(crate) fn engine(rails: &str, settings: &[(&str, &str)]) -> Result<Engine, EngineError> {
    let mut config = Config::builder().set("rails", rails).unwrap().set("path", "tcp").unwrap();
    for (name, value) in settings {
        config = config.set(name, value).unwrap();
    }
    Engine::builder().config(config.build().unwrap()).build()
}

/// Two engines that are peers.
pub(crate) fn pair(settings: &[(&str, &str)]) -> (Engine, Engine, Peer) {
    let (one, two) = (engine(&double(), settings).unwrap(), engine(&double(), settings).unwrap());
    let peer = one.add_peer(&two.metadata()).unwrap();
    (one, two, peer)
}

pub(crate) fn wait_for(what: &str, mut look: impl FnMut() -> bool) {
    let until = Instant::now() + DEADLINE;
    while !look() {
        assert!(Instant::now() < until, "{what}");
        // Other threads make the progress, without an event, so poll.
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Bytes that the plugin has carried on each flow.
pub(crate) fn carried(stats: &Stats) -> Vec<u64> {
    let rails = stats.peers.iter().flat_map(|peer| &peer.rails);
    rails.flat_map(|rail| &rail.flows).map(|flow| flow.carried_bytes).collect()
}

/// Bytes that differ between places and between rounds.
pub(crate) fn pattern(len: usize, round: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(round).fill(&mut bytes);
    bytes
}
