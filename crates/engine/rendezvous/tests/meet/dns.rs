//! The addresses of a name, in a namespace with its own loopback interface and its own `/etc/hosts`. The resolver's
//! answer changes while the members run.

use std::fs;
use std::process::{Command, Stdio};

use polyrail_rendezvous::{Event, Membership, RendezvousError, join};

use crate::common::{DEADLINE, Process, engine};

const PORT: u16 = 29_600;

/// A member on each of three addresses. The script ends with its standard input, and the members with it.
const SCRIPT: &str = r#"
exec 3<&0
mount --bind "$HOSTS" /etc/hosts || exit 1
ip link set lo up || exit 1
for last in 2 3; do ip address add 127.0.0.$last/8 dev lo || exit 1; done
for last in 3 2 1; do
    POLYRAIL_RAILS=127.0.0.$last "$MEMBER" g w$last "$COUNT" stay <&3 | sed -u "s/^/$last: /" &
done
wait
"#;

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--net", "--mount", "--pid", "--fork"]);
    command.args(["--kill-child", "sh", "-c"]).args(arguments);
    command
}

#[test]
fn members_are_the_addresses_of_the_name_as_they_change() {
    let script = "mount --bind /etc/hosts /etc/hosts && ip link set lo up";
    let tried = command(&[script]).stderr(Stdio::null()).status();
    if !tried.is_ok_and(|status| status.success()) {
        return polyrail_skip::skip(
            "user namespaces are not allowed, or `unshare` or `ip` is missing (util-linux, iproute2)",
            "sudo -E cargo test -p polyrail-rendezvous --test meet",
        );
    }
    let folder = tempfile::tempdir().unwrap();
    let hosts = folder.path().join("hosts");
    let write = |addresses: &[u8]| {
        let line = |last: &u8| format!("127.0.0.{last} workers.test\n");
        // Written in place, because the file is mounted elsewhere.
        fs::write(&hosts, addresses.iter().map(line).collect::<String>()).unwrap();
    };
    write(&[1, 2, 3]);
    let mut command = command(&[SCRIPT]);
    command.env("HOSTS", &hosts).env("COUNT", "3");
    command.env("MEMBER", env!("CARGO_BIN_EXE_rendezvous-member"));
    command.env("POLYRAIL_RENDEZVOUS", format!("dns://workers.test:{PORT}?every=200ms"));
    command.env("POLYRAIL_LISTEN_PORT", PORT.to_string());
    let process = Process::start(&mut command);
    let mut lines = Vec::new();
    for _ in 0..3 {
        lines.extend(process.until("heard 2"));
    }
    write(&[1, 2]);
    process.until("left 127.0.0.3:29600");
    write(&[1, 2, 3]);
    process.until("joined 127.0.0.3:29600");
}

#[test]
fn a_name_that_nobody_knows_is_named() {
    let own = engine("dns://no-such-name.invalid:29600");
    let error = join(&own, &Membership::new("g").unwrap()).unwrap_err();
    let told = error.to_string();
    assert!(matches!(error, RendezvousError::Unreachable { .. }), "{told}");
    assert!(told.contains("no-such-name.invalid: "), "{told}");
}

#[test]
fn an_address_where_an_engine_listens_is_a_member_and_one_that_dies_has_left() {
    let other = engine("");
    let own = engine(&format!("dns://127.0.0.1:{}?every=100ms", other.addresses()[0].port()));
    let group = join(&own, &Membership::new("g").unwrap()).unwrap();
    let members = group.wait_for(2, DEADLINE).unwrap();
    assert_eq!(members[0].name(), other.addresses()[0].to_string());
    assert_eq!(members[0].metadata(), None);
    assert_eq!(group.peer(&members[0]).unwrap().instance(), other.instance());
    assert_eq!(members[0].card().unwrap().addresses, other.addresses());
    assert!(matches!(group.next_event(DEADLINE), Some(Event::Joined(_))));
    other.close();
    assert!(matches!(group.next_event(DEADLINE), Some(Event::Left { .. })));
}
