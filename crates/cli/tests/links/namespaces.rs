//! Choice of rails in network namespaces that look like users' machines.

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

use crate::common::PROGRAM;

/// Script that makes `eth0`, whose other end is in the namespace of process `$other`, as in a pod.
const POD: &str = r#"
set -e
up() { ip link set "$1" up; }
running() { timeout 20 sh -c "until ip link show dev $1 | grep -q LOWER_UP; do sleep 0.02; done"; }
unshare --net sleep 30 >/dev/null 2>&1 &
other=$!
here=$(readlink /proc/self/ns/net)
timeout 20 sh -c "while [ \"\$(readlink /proc/$other/ns/net)\" = $here ]; do sleep 0.02; done"
up lo
ip link add eth0 type veth peer name eth0 netns $other
nsenter --target $other --net ip link set eth0 up
up eth0
"#;

/// A command that runs a script in its own network namespace. `None` skips the test: there can't be such a namespace.
fn in_namespace(script: &str) -> Option<Command> {
    let is_root = rustix::process::geteuid().is_root();
    let user: &[&str] = if is_root { &[] } else { &["--user", "--map-root-user"] };
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(user).arg("--net");
        command
    };
    let trial = "ip link add v1 type veth peer name v2 && ip link add br1 type bridge";
    if !unshare().args(["sh", "-c", trial]).output().is_ok_and(|it| it.status.success()) {
        let run = "sudo -E cargo test -p polyrail-cli --test links namespaces";
        polyrail_skip::skip("no network namespaces, or no `ip`", run);
        return None;
    }
    let mut command = unshare();
    let script = format!("{POD}\n{script}");
    command.args(["sh", "-c", &script]).arg(PROGRAM);
    Some(command)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Checks `polyrail host show`: the rails of `auto`, and a line for each reason to leave others out.
#[track_caller]
fn takes(script: &str, rails: &str, left_out: Option<&str>) {
    let script = format!("{script}\nexec \"$0\" host show --no-nvml");
    let Some(mut command) = in_namespace(&script) else { return };
    let output: Output = command.output().unwrap();
    let (said, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{errors}");
    let found =
        |start: &str| said.lines().filter_map(|line| line.strip_prefix(start)).collect::<Vec<_>>();
    assert_eq!(found("rails = auto takes "), [rails], "{said}{errors}");
    let wanted: Vec<&str> = left_out.iter().flat_map(|left_out| left_out.split("; ")).collect();
    assert_eq!(found("left out: "), wanted, "{said}{errors}");
}

#[test]
fn a_pod_takes_its_end_of_a_veth() {
    let script = "ip addr add 10.244.0.11/24 dev eth0; running eth0";
    takes(script, "eth0 10.244.0.11", None);
    // Calico.
    let script = "ip addr add 10.244.0.11/32 dev eth0; running eth0
        ip route add 169.254.1.1 dev eth0; ip route add default via 169.254.1.1 dev eth0";
    takes(script, "eth0 10.244.0.11", None);
}

#[test]
fn a_bridge_with_the_hosts_address_is_taken_and_one_for_containers_is_not() {
    let script = "ip link add vmbr0 type bridge; ip link set eth0 master vmbr0
        ip addr add 10.0.0.5/24 dev vmbr0; up vmbr0; running vmbr0";
    takes(script, "vmbr0 10.0.0.5", None);
    let script = "ip addr add 10.244.0.11/24 dev eth0; running eth0
        ip link add docker0 type bridge; ip addr add 172.17.0.1/16 dev docker0; up docker0
        ip link add v1 type veth peer name v2; ip link set v1 master docker0; up v1; up v2
        running docker0";
    takes(script, "eth0 10.244.0.11", Some("docker0 (a bridge without a NIC)"));
}

#[test]
fn a_macvlan_with_an_address_is_taken_in_place_of_what_is_below_it() {
    let script = "ip link add link eth0 name net1 type macvlan mode bridge
        ip addr add 10.56.0.7/24 dev net1; up net1; running net1";
    takes(script, "net1 10.56.0.7", None);
}

#[test]
fn an_overlay_is_taken_only_if_it_is_named() {
    let script =
        "ip addr add 10.1.1.11/32 dev eth0; ip route add 10.1.0.0/16 dev eth0; running eth0
        ip link add vxlan.calico type vxlan id 4096 dstport 4789 local 10.1.1.11
        ip addr add 10.244.10.0/24 dev vxlan.calico; up vxlan.calico; running vxlan.calico";
    takes(script, "eth0 10.1.1.11", Some("vxlan.calico (an overlay)"));
}

#[test]
fn an_interface_without_an_address_that_peers_can_reach_lacks_one() {
    for (script, name, code, why) in [
        (
            "running eth0",
            "eth0",
            3,
            "interface eth0 has no address that peers can reach: only fe80:",
        ),
        (
            "ip link set eth0 down; ip link set eth0 addrgenmode none; up eth0; running eth0",
            "eth0",
            3,
            "interface eth0 has no address; allowed",
        ),
        ("ip link set eth0 down", "eth0", 3, "interface eth0 is down"),
        ("running eth0", "nosuch", 2, "there is no interface nosuch"),
        (
            "ip link add eth1 type veth peer name eth1 netns $other
            ip link set eth1 addrgenmode none; nsenter --target $other --net ip link set eth1 up
            up eth1; running eth1; ip addr add 10.0.0.5/24 dev eth0; running eth0",
            "^eth0",
            3,
            "no other interface is usable: eth1 (no address); allowed",
        ),
        (
            "ip addr add 10.0.0.5/24 dev eth0; running eth0",
            "^eth9",
            0,
            "rails excludes eth9, which no interface is called",
        ),
    ] {
        let script = format!("{script}\nexec \"$0\" bench --rails {name} --sizes 8 --json none");
        let Some(mut command) = in_namespace(&script) else { return };
        let output = command.output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(why), "{said}");
    }
}

#[test]
fn a_pods_interfaces_without_an_address_are_left_out_with_the_reason() {
    let script = "for name in eth1 eth2; do
            ip link add $name type veth peer name $name netns $other
            nsenter --target $other --net ip link set $name up
        done
        ip link set eth1 addrgenmode none; up eth1; up eth2
        ip addr add 10.244.0.11/24 dev eth0; ip route add default via 10.244.0.1
        ip addr add 10.9.0.1/32 dev eth2
        running eth0; running eth1; running eth2";
    let left_out = "eth1 (no address); eth2 (a veth without a route)";
    takes(script, "eth0 10.244.0.11", Some(left_out));
}

#[test]
fn a_bench_that_only_this_host_can_reach_says_so_and_prints_no_line_for_another() {
    for (rails, why) in [
        ("auto", "left out: eth0 (no address that peers can reach: only fe80:"),
        ("2", "127.0.0.1; `--rails auto` takes the interfaces that lead to other hosts"),
    ] {
        let script = format!("running eth0; exec \"$0\" bench --listen --rails {rails}");
        let Some(mut command) = in_namespace(&script) else { return };
        let mut bench = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(bench.stdout.take().unwrap()).lines().map_while(Result::ok);
        let said = lines.into_iter().find(|line| line.starts_with("elsewhere:"));
        bench.kill().unwrap();
        bench.wait().unwrap();
        let said = said.unwrap_or_default();
        assert!(said.contains("not possible: only this host can reach 127.0.0.1"), "{said}");
        assert!(said.contains(why) && !said.contains("--connect"), "{said}");
    }
}
