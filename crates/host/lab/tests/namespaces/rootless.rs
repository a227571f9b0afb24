//! A lab without root, where user namespaces are allowed.
//!
//! As root, the test runs itself again as the user `nobody`. A thread can't enter such a lab, so
//! further runs of this program inside make the traffic.

use std::env;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{self, skipped, v4, v6};
use polyrail_lab::{Lab, LabError, LabState, Privilege, RailInfo, Rate, Side, availability};

const ROLE: &str = "LAB_TEST_ROLE";
/// Prefix of the reason that the role `lab` prints when it can't make a lab.
const NO_LAB: &str = "no lab without root: ";
const NOBODY: u32 = 65534;

#[test]
fn a_user_builds_uses_and_removes_a_lab() {
    let _turn = common::turn();
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    // Another user may not be able to read the directory where cargo put this program.
    let program = folder.path().join("namespaces");
    // Another process makes the copy: a file that this process writes may still be open in a child
    // that another test is just starting, and then it can't be run.
    let copied = Command::new("cp").arg(env::current_exe().unwrap()).arg(&program).status();
    assert!(copied.unwrap().success());

    let mut command = again(Command::new(program), "lab");
    command.current_dir(folder.path());
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    let output = command.output().unwrap();
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if let Some(reason) = out.lines().find_map(|line| line.strip_prefix(NO_LAB)) {
        return skipped(reason);
    }
    assert!(output.status.success() && out.contains("1 passed"), "{out}\n{err}");
    assert!(out.contains("lab went up and down"), "{out}\n{err}");
}

#[test]
#[ignore = "the other test runs it, in a role"]
fn role() {
    match env::var(ROLE).as_deref() {
        Ok("lab") => use_lab(),
        Ok(role) => match role.split_once(' ') {
            Some(("serve", address)) => serve(address.parse().unwrap()),
            Some(("send", address)) => send(address.parse().unwrap()),
            _ => panic!("unknown role {role}"),
        },
        Err(_) => panic!("only the other test of this file can run it"),
    }
}

fn again(mut command: Command, role: &str) -> Command {
    command.args(["--exact", "rootless::role", "--ignored", "--nocapture"]).env(ROLE, role);
    command
}

fn use_lab() {
    match availability() {
        Ok(privilege) => assert_eq!(privilege, Privilege::UserNamespace),
        Err(error) => {
            println!("\n{NO_LAB}{error} ({})", error.help().unwrap());
            return;
        }
    }
    let spec = common::spec("rootless", "1gbit,4gbit");
    let lab = Lab::up(&spec).unwrap().guard();
    assert_eq!(lab.privilege(), Privilege::UserNamespace);
    assert!(matches!(Lab::up(&spec), Err(LabError::AlreadyUp { .. })));

    common::assert_reaches(1e9, || transfer(&lab, &lab.rails()[0], false));
    lab.set_link(1, false).unwrap();
    assert!(!lab.observe().unwrap()[1].up);
    lab.set_link(1, true).unwrap();
    transfer(&lab, &lab.rails()[1], true);
    lab.set_rate(0, "200mbit".parse::<Rate>().unwrap()).unwrap();
    common::assert_reaches(200e6, || transfer(&lab, &lab.rails()[0], false));

    let refused = std::thread::scope(|scope| {
        scope.spawn(|| lab.enter_thread(Side::A).unwrap_err()).join().unwrap()
    });
    assert!(matches!(refused, LabError::ThreadCannotEnter { .. }), "{refused}");
    assert!(refused.help().unwrap().contains("polyrail lab exec"));

    let mut inside = lab.command(Side::A, "sleep").arg("100").spawn().unwrap();
    let info = Lab::list().unwrap().into_iter().find(|info| info.name == spec.name).unwrap();
    assert_eq!((info.state, info.processes), (LabState::Ready, 1));
    let holder = lab.namespace_path(Side::A).to_owned();
    lab.down().unwrap();
    assert!(!inside.wait().unwrap().success());
    assert!(!holder.exists(), "the holder still runs");
    assert!(Lab::list().unwrap().iter().all(|info| info.name != spec.name));

    holder_that_ends_is_noticed();
    println!("lab went up and down");
}

fn holder_that_ends_is_noticed() {
    let spec = common::spec("killed", "1gbit");
    let lab = Lab::up(&spec).unwrap();
    let path = lab.namespace_path(Side::A).to_owned();
    let pid = path.components().nth(2).unwrap().as_os_str().to_str().unwrap().parse().unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty()).unwrap();
    let error = Lab::open(&spec.name).unwrap_err();
    assert!(error.to_string().contains("the process that held it has ended"), "{error}");
    let lab = Lab::up(&spec).unwrap();
    assert_eq!(lab.replaced(), Some("the process that held it has ended"));
    lab.down().unwrap();
    assert!(matches!(Lab::remove(&spec.name), Err(LabError::UnknownLab { .. })));
}

/// Returns the bits per second from a program on side a to one on side b.
fn transfer(lab: &Lab, rail: &RailInfo, ipv6: bool) -> f64 {
    let ip = if ipv6 { v6(rail.end(Side::B)) } else { v4(rail.end(Side::B)) };
    let address = SocketAddr::new(ip, 5001);
    let program = env::current_exe().unwrap();
    let server = again(lab.command(Side::B, &program), &format!("serve {address}"))
        .stdout(Stdio::piped())
        .spawn();
    let mut server = server.unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("ready")), "the server did not start");
    let client = again(lab.command(Side::A, &program), &format!("send {address}")).output();
    let client = client.unwrap();
    assert!(client.status.success(), "{client:?}");
    let found = lines.find_map(|line| line.unwrap().strip_prefix("rate ").map(str::to_owned));
    assert!(server.wait().unwrap().success());
    found.unwrap().parse().unwrap()
}

fn serve(address: SocketAddr) {
    let listener = TcpListener::bind(address).unwrap();
    println!("ready");
    let (mut stream, _) = listener.accept().unwrap();
    let rate = common::receive_rate(&stream, Duration::from_millis(500));
    println!("\nrate {rate}");
    let _ = stream.write_all(b"enough");
}

fn send(address: SocketAddr) {
    let stream = TcpStream::connect(address).unwrap();
    let (mut reader, mut writer) = (stream.try_clone().unwrap(), stream.try_clone().unwrap());
    let filling = std::thread::spawn(move || {
        let block = vec![0x5a; 1 << 20];
        while writer.write_all(&block).is_ok() {}
    });
    reader.read_exact(&mut [0; 6]).unwrap();
    // The server may have closed the connection already.
    let _ = stream.shutdown(std::net::Shutdown::Both);
    filling.join().unwrap();
}
