//! Addresses that `polyrail bench --listen` listens on.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};

use polyrail_report::exit;

use crate::common::{PROGRAM, run};

#[test]
fn a_port_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let output = run(&["bench", "--listen", &address.to_string()]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(exit::ENVIRONMENT.into()), "{message}");
    assert!(message.contains(&address.to_string()) && message.contains("in use"), "{message}");
}

#[test]
fn of_a_name_with_several_addresses_each_is_listened_on() {
    let hosts = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&hosts, "127.0.0.1 both.test\n127.0.0.2 both.test\n").unwrap();
    let named = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-current-user", "--keep-caps", "--mount", "sh", "-c"]);
        command.arg(format!("mount --bind {} /etc/hosts && {script}", hosts.path().display()));
        command
    };
    if !named("true").output().is_ok_and(|it| it.status.success()) {
        let why = "user namespaces are not allowed, or `unshare` is missing (util-linux)";
        return polyrail_skip::skip(
            why,
            "sudo -E cargo test -p polyrail-cli --test plain listen::",
        );
    }
    let mut listener = named(&format!("exec {PROGRAM} bench --listen both.test:0"));
    let mut listener = listener.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(listener.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let told = line.trim().strip_prefix("listening on ").unwrap_or_default().split(", ");
    let mut told: Vec<SocketAddr> = told.map(|one| one.parse().unwrap()).collect();
    let connected = told.iter().map(TcpStream::connect).collect::<Result<Vec<_>, _>>();
    listener.kill().unwrap();
    listener.wait().unwrap();
    connected.unwrap();
    told.sort_unstable();
    let ips: Vec<String> = told.iter().map(|one| one.ip().to_string()).collect();
    assert_eq!(ips, ["127.0.0.1", "127.0.0.2"]);
}
