//! Choice of a node's rails: in pods, behind bridges, next to tunnels and overlays.

use crate::net::{Net, Run};

/// Two pods of one host, as Docker's bridge and most plugins of Kubernetes make them.
fn two_pods(test: &str) -> Option<Net> {
    let mut net = Net::new(test, &["a", "b"])?;
    net.nic("a", "eth0", "cni0", &["10.244.0.11/24"]);
    net.nic("b", "eth0", "cni0", &["10.244.0.12/24"]);
    net.settle();
    Some(net)
}

/// Checks that these rails carried, and that the listening end printed `address` and no loopback address.
#[track_caller]
fn assert_over(run: &Run, address: &str, rails: &[&str]) {
    run.assert_carry(rails);
    assert!(run.listening.stdout.contains(&format!("listening on {address}")), "{run}");
    assert!(!run.listening.stdout.contains("127.0.0.1:"), "{run}");
}

#[test]
fn two_pods_connect_by_eth0_though_it_is_a_veth() {
    let Some(net) = two_pods("pods") else { return };
    assert_over(&net.bench(("a", ""), ("b", "")), "10.244.0.11", &["eth0"]);
}

#[test]
fn a_veth_whose_other_end_has_the_same_index_is_a_pods_way_out_too() {
    let Some(mut net) = Net::new("same-index", &["a", "b"]) else { return };
    // The kernel numbers interfaces per namespace, so both ends of this veth have the same index.
    net.wire(("b", Some("eth0")), ("a", "eth0"), &["10.244.0.11/24"]);
    net.address("b", "eth0", "10.244.0.12/24");
    net.settle();
    assert_over(&net.bench(("a", ""), ("b", "")), "10.244.0.11", &["eth0"]);
    assert_over(&net.bench(("b", ""), ("a", "")), "10.244.0.12", &["eth0"]);
}

#[test]
fn a_pods_own_address_can_be_listened_on() {
    let Some(net) = two_pods("pod-address") else { return };
    assert_over(&net.bench(("a", "10.244.0.11:0"), ("b", "")), "10.244.0.11", &["eth0"]);
}

#[test]
fn a_pod_that_names_eth0_and_one_that_does_not_connect() {
    let Some(net) = two_pods("pod-named") else { return };
    assert_over(&net.bench(("a", "--rails eth0"), ("b", "")), "10.244.0.11", &["eth0"]);
    assert_over(&net.bench(("a", ""), ("b", "--rails eth0")), "10.244.0.11", &["eth0"]);
}

#[test]
fn an_address_on_a_bridge_is_used_instead_of_the_bridges_port() {
    let Some(net) = two_pods("bridge") else { return };
    // Proxmox and libvirt set a node up like this.
    net.ip("a", "link add vmbr0 type bridge");
    net.ip("a", "addr flush dev eth0");
    net.ip("a", "link set eth0 master vmbr0");
    net.ip("a", "link set vmbr0 up");
    net.ip("a", "addr add 10.244.0.11/24 dev vmbr0");
    net.settle();
    let run = net.bench(("a", ""), ("b", ""));
    assert_over(&run, "10.244.0.11", &["eth0"]);
    // Node a's own rail has the bridge's name.
    assert_over(&net.bench(("b", ""), ("a", "")), "10.244.0.12", &["vmbr0"]);
}

#[test]
fn a_macvlan_is_a_way_out() {
    let Some(net) = two_pods("macvlan") else { return };
    // As Multus and Docker's macvlan networks do.
    net.ip("b", "link add link eth0 name net1 type macvlan mode bridge");
    net.ip("b", "addr flush dev eth0");
    net.ip("b", "addr add 10.244.0.12/24 dev net1");
    net.ip("b", "link set net1 up");
    net.settle();
    assert_over(&net.bench(("a", ""), ("b", "")), "10.244.0.11", &["net1"]);
    assert_over(&net.bench(("b", ""), ("a", "")), "10.244.0.12", &["eth0"]);
}

#[test]
fn pods_with_ipv6_only_connect() {
    let Some(mut net) = Net::new("pods6", &["a", "b"]) else { return };
    net.nic("a", "eth0", "cni0", &["fd00:10:244::11/64"]);
    net.nic("b", "eth0", "cni0", &["fd00:10:244::12/64"]);
    net.settle();
    assert_over(&net.bench(("a", ""), ("b", "")), "[fd00:10:244::11]", &["eth0"]);
}

#[test]
fn pods_of_two_hosts_connect_by_their_default_route() {
    let Some(mut net) = Net::new("pods-routed", &["a", "b"]) else { return };
    net.routed("a", "eth0", "10.244.1.11/24", "10.244.1.1/24");
    net.routed("b", "eth0", "10.244.2.12/24", "10.244.2.1/24");
    net.ip("a", "route add default via 10.244.1.1");
    net.ip("b", "route add default via 10.244.2.1");
    net.settle();
    assert_over(&net.bench(("a", ""), ("b", "")), "10.244.1.11", &["eth0"]);
}

#[test]
fn pods_with_a_32_and_a_gateway_of_link_scope_connect() {
    let Some(mut net) = Net::new("calico", &["a", "b"]) else { return };
    // As Calico makes them: nothing but the gateway is on the link.
    for (node, address, port) in [("a", "10.244.1.11", "p1"), ("b", "10.244.2.12", "p2")] {
        net.routed(node, "eth0", &format!("{address}/32"), "169.254.1.1/32");
        net.ip(node, "route add 169.254.1.1 dev eth0 scope link");
        net.ip(node, "route add default via 169.254.1.1 dev eth0");
        net.ip("router", &format!("route add {address} dev {port} scope link"));
    }
    net.settle();
    assert_over(&net.bench(("a", ""), ("b", "")), "10.244.1.11", &["eth0"]);
}

#[test]
fn a_pods_second_interface_carries_too() {
    let Some(mut net) = two_pods("multus") else { return };
    net.nic("a", "net1", "data", &["192.168.7.11/24"]);
    net.nic("b", "net1", "data", &["192.168.7.12/24"]);
    for node in ["a", "b"] {
        net.ip(node, "route add default via 10.244.0.1");
        net.limit(node, "eth0", 200);
        net.limit(node, "net1", 200);
    }
    net.settle();
    net.bench(("a", ""), ("b", "")).assert_carry(&["eth0", "net1"]);
}

#[test]
fn a_node_without_any_way_out_says_that_only_this_host_can_connect() {
    let Some(net) = Net::new("loopback", &["a"]) else { return };
    let mut listening = net.start("a", "bench --listen");
    let line = listening.wait_for_line("listening on").unwrap_or_default();
    assert!(line.contains("127.0.0.1"), "{line}");
    let end = listening.end(std::time::Instant::now());
    end.assert_says(&["only", "this host"]);
}

/// Two nodes with one NIC each, in different subnets, next to devices of Calico and Tailscale.
fn beside_tunnels(test: &str) -> Option<Net> {
    let mut net = Net::new(test, &["a", "b"])?;
    net.nic("a", "eth0", "lan", &["10.1.1.11/32"]);
    net.nic("b", "eth0", "lan", &["10.1.2.12/32"]);
    for (node, own, far) in [("a", "10.1.1.11", 1), ("b", "10.1.2.12", 2)] {
        net.ip(node, "route add 10.1.0.0/16 dev eth0");
        net.ip(node, &format!("link add vxlan.calico type vxlan id 4096 dstport 4789 local {own}"));
        net.ip(node, &format!("addr add 10.244.{far}0.0/32 dev vxlan.calico"));
        net.ip(node, "link set vxlan.calico up");
        // No program runs behind this device, which changes nothing about its kind.
        net.ip(node, "tuntap add dev tailscale0 mode tun");
        net.ip(node, &format!("addr add 100.101.{far}.1/32 dev tailscale0"));
        net.ip(node, "link set tailscale0 up");
    }
    net.settle();
    Some(net)
}

#[test]
fn tunnels_and_overlays_become_no_rails_and_their_addresses_are_not_told() {
    let Some(net) = beside_tunnels("tunnels") else { return };
    let run = net.bench(("a", ""), ("b", ""));
    assert_over(&run, "10.1.1.11", &["eth0"]);
    assert_eq!(run.carried().len(), 1, "{run}");
    run.assert_both_say(&["vxlan.calico", "tailscale0", "overlay"]);
    assert!(!run.listening.said().contains("100.101.1.1"), "{run}");
}

#[test]
fn a_dummy_interface_becomes_no_rail() {
    let Some(net) = beside_tunnels("dummy") else { return };
    // An ifb reaches no host, like a dummy, and more kernels have it.
    net.ip("a", "link add ifb0 type ifb");
    net.ip("a", "addr add 10.99.0.1/24 dev ifb0");
    net.ip("a", "link set ifb0 up");
    let run = net.bench(("a", ""), ("b", ""));
    assert_over(&run, "10.1.1.11", &["eth0"]);
    run.listening.assert_says(&["ifb0"]);
    let topo = net.polyrail("a", "host show");
    topo.assert_says(&["ifb0", "vxlan.calico", "tailscale0"]);
}

#[test]
fn a_tunnel_that_is_named_becomes_a_rail() {
    let Some(net) = beside_tunnels("named-tunnel") else { return };
    for (node, own, far, last) in
        [("a", "10.1.1.11", "10.1.2.12", 1), ("b", "10.1.2.12", "10.1.1.11", 2)]
    {
        net.ip(
            node,
            &format!("link add vx7 type vxlan id 7 dstport 4790 local {own} remote {far}"),
        );
        net.ip(node, &format!("addr add 10.7.7.{last}/24 dev vx7"));
        net.ip(node, "link set vx7 up");
    }
    net.settle();
    let run = net.bench(("a", "--rails vx7"), ("b", "--rails vx7"));
    assert_over(&run, "10.7.7.1", &["vx7"]);
}

#[test]
fn a_point_to_point_tunnel_with_a_peers_address_becomes_no_rail() {
    let Some(mut net) = two_pods("wireguard") else { return };
    net.nic("a", "eth1", "cni1", &["10.244.1.11/24"]);
    net.nic("b", "eth1", "cni1", &["10.244.1.12/24"]);
    for (node, own, far) in [("a", "10.8.0.1", "10.8.0.2"), ("b", "10.8.0.2", "10.8.0.1")] {
        net.ip(node, "tuntap add dev net9 mode tun");
        net.ip(node, &format!("addr add {own} peer {far} dev net9"));
        net.ip(node, "link set net9 up");
        net.limit(node, "eth0", 200);
        net.limit(node, "eth1", 200);
    }
    net.settle();
    let run = net.bench(("a", ""), ("b", ""));
    run.assert_carry(&["eth0", "eth1"]);
    run.assert_both_say(&["net9"]);
}

#[test]
fn a_tunnel_is_the_last_thing_taken_even_where_nothing_else_is_there() {
    let Some(net) = Net::new("tunnel-only", &["a"]) else { return };
    net.ip("a", "tuntap add dev tailscale0 mode tun");
    net.ip("a", "addr add 100.101.1.1/32 dev tailscale0");
    net.ip("a", "link set tailscale0 up");
    let mut listening = net.start("a", "bench --listen");
    listening.wait_for_line("listening on");
    // Both loopback and the tunnel are right choices; the output must name the tunnel.
    listening.end(std::time::Instant::now()).assert_says(&["tailscale0"]);
}
