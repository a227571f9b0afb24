"""Builds a topology from namespaces, and removes it."""

import ctypes
import os
import shutil
import subprocess
import time
from contextlib import contextmanager

CLONE_NEWNET = 0x40000000
LIBC = ctypes.CDLL(None, use_errno=True)


class CannotBuild(Exception):
    """The machine does not let namespaces be built."""


class Network:
    def __init__(self, topology, prefix):
        self.topology, self.prefix = topology, prefix
        self.names = [f"n{node}" for node in range(topology.nodes)] + ["sw", "rt"]
        self.batches = {name: [] for name in self.names}

    def namespace(self, name):
        return f"{self.prefix}-{name}"

    def up(self):
        self.down()
        for name in self.names:
            run("ip", "netns", "add", self.namespace(name))
            with self.inside(name):
                settings = {"net/ipv6/conf/all/accept_dad": 0, "net/ipv6/conf/default/accept_dad": 0}
                filters = self.topology.rp_filter if name[0] == "n" else 0
                settings |= {f"net/ipv4/conf/{which}/rp_filter": filters for which in ("all", "default")}
                if name == "rt":
                    settings |= {"net/ipv4/ip_forward": 1, "net/ipv6/conf/all/forwarding": 1}
                for path, value in settings.items():
                    with open(f"/proc/sys/{path}", "w", encoding="ascii") as file:
                        file.write(str(value))
            self.ip(name, "link set lo up")
        ports = 0
        for fabric in self.topology.fabrics:
            if fabric["kind"] not in ("routed", "point-to-point", "alone"):
                self.ip("sw", f"link add lan{fabric['number']} type bridge", f"link set lan{fabric['number']} up")
            members = [nic for nic in self.topology.all_nics() if nic.fabric is fabric]
            if fabric["kind"] == "point-to-point" and len(members) == 2:
                one, two = members
                far = self.namespace(f"n{two.node}")
                self.ip(f"n{one.node}", f"link add {one.name} type veth peer name {two.name} netns {far}")
                continue
            for nic in members:
                ports += 1
                place = "rt" if fabric["kind"] == "routed" else "sw"
                near = self.namespace(f"n{nic.node}")
                index = f" index {1000 + ports}"
                far = index if nic.same_index else ""
                self.ip(place, f"link add p{ports}{index} type veth peer name {nic.name} netns {near}{far}")
                if fabric["kind"] == "alone":
                    pass  # A port that leads nowhere.
                elif place == "sw":
                    self.ip("sw", f"link set p{ports} master lan{fabric['number']}")
                else:
                    for address in nic.addresses:
                        self.ip("rt", f"addr add {gateway_of(address)} dev p{ports}{nodad(address)}")
                self.ip(place, f"link set p{ports} up")
        # Switch, router and the first node make the NICs of the others.
        for name in ("sw", "rt", "n0"):
            self.flush(name)
        for nic in self.topology.all_nics():
            self.address(nic)
        for node in range(self.topology.nodes):
            self.default_route(node)
            self.others(node)
            self.flush(f"n{node}")
        for nic in self.topology.all_nics():
            self.shape_and_guard(nic)
        self.settle()
        for nic in self.topology.all_nics():
            if nic.down:
                self.ip(f"n{nic.node}", f"link set {nic.name} down")
        for node in range(self.topology.nodes):
            self.flush(f"n{node}")

    def address(self, nic):
        node, number = f"n{nic.node}", nic.fabric["number"]
        if nic.upper == "bridge":
            self.ip(node, f"link add {nic.device} type bridge", f"link set {nic.name} master {nic.device}")
        elif nic.upper == "macvlan":
            self.ip(node, f"link add link {nic.name} name {nic.device} type macvlan mode bridge")
        self.ip(node, f"link set {nic.name} up")
        if nic.upper:
            self.ip(node, f"link set {nic.device} up")
        for address in nic.addresses:
            self.ip(node, f"addr add {address} dev {nic.device}{nodad(address)}")
            is_6 = ":" in address
            wide = f"fd00:{number + 1}::/32" if is_6 else f"10.{number + 1}.0.0/16"
            if nic.fabric["kind"] == "routed":
                via = gateway_of(address).split("/")[0]
                self.ip(node, f"route add {wide} via {via} dev {nic.device}")
            elif nic.fabric["kind"] == "host-routes":
                self.ip(node, f"route add {wide} dev {nic.device}")

    def default_route(self, node):
        if not self.topology.default_route[node]:
            return
        for nic in self.topology.nics[node]:
            if nic.fabric["kind"] == "routed" and not nic.down:
                for address in nic.addresses:
                    via = gateway_of(address).split("/")[0]
                    self.ip(f"n{node}", f"route add default via {via} dev {nic.device}")
                return

    def others(self, node):
        """What must not become a rail: it reaches nobody, or only by way of a NIC."""
        name = f"n{node}"
        for kind in self.topology.others[node]:
            if kind == "vxlan":
                first = next((a for nic in self.topology.nics[node] for a in nic.addresses if ":" not in a), None)
                if first is None:
                    continue
                local = first.split("/")[0]
                self.ip(name, f"link add vxlan.calico type vxlan id 4096 dstport 4789 local {local}")
                self.ip(name, f"addr add 10.244.{node}.0/32 dev vxlan.calico", "link set vxlan.calico up")
            elif kind == "tun":
                self.flush(name)
                run("ip", "-n", self.namespace(name), "tuntap", "add", "dev", "tailscale0", "mode", "tun")
                self.ip(name, f"addr add 100.101.{node}.1/32 dev tailscale0", "link set tailscale0 up")
            else:
                self.ip(name, "link add ifb0 type ifb", f"addr add 10.99.{node}.1/24 dev ifb0", "link set ifb0 up")

    def shape_and_guard(self, nic):
        namespace = self.namespace(f"n{nic.node}")
        rate = f"{nic.fabric['mbit']}mbit"
        run("tc", "-n", namespace, "qdisc", "add", "dev", nic.name, "root", "tbf",
            "rate", rate, "burst", "64k", "latency", "20ms")
        if nic.firewall:
            if not shutil.which("nft"):
                raise CannotBuild("the `nft` program is missing (nftables)")
            answer = "drop" if nic.firewall == "drop" else "reject with tcp reset"
            # The interface below one with the address answers ARP for it, too.
            rules = f"table inet t_{nic.name} {{ chain in {{ type filter hook input priority 0;\n" \
                    f"iifname {{ {nic.device}, {nic.name} }} tcp flags & (syn | ack) == syn {answer}\n}}\n}}\n"
            run("ip", "netns", "exec", namespace, "nft", "-f", "-", text=rules)

    def settle(self):
        """The kernel may take a second to see that a link is up."""
        deadline = time.monotonic() + 10
        for node in range(self.topology.nodes):
            while time.monotonic() < deadline:
                told = run("ip", "-n", self.namespace(f"n{node}"), "-br", "link").splitlines()
                if not any(" DOWN " in line or "NO-CARRIER" in line for line in told if line.startswith("eth")):
                    break
                time.sleep(0.02)

    def ip(self, name, *lines):
        self.batches[name].extend(lines)

    def flush(self, name):
        lines, self.batches[name] = self.batches[name], []
        if lines:
            run("ip", "-n", self.namespace(name), "-batch", "-", text="\n".join(lines) + "\n")

    def down(self):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", self.namespace(name)], stderr=subprocess.DEVNULL, check=False)

    @contextmanager
    def inside(self, name):
        """Has this thread in a namespace: sockets that it makes stay there."""
        with open("/proc/thread-self/ns/net", "rb") as home, \
                open(f"/run/netns/{self.namespace(name)}", "rb") as there:
            enter(there)
            try:
                yield
            finally:
                enter(home)


def enter(namespace):
    if LIBC.setns(namespace.fileno(), CLONE_NEWNET) != 0:
        raise CannotBuild(f"entering a namespace: {os.strerror(ctypes.get_errno())}")


def nodad(address):
    return " nodad" if ":" in address else ""


def gateway_of(address):
    """The router's end of a link: the address below, or the first of a /24."""
    ip, bits = address.split("/")
    if ":" in ip:
        return ip.rsplit("::", 1)[0] + "::ff/" + bits
    head, last = ip.rsplit(".", 1)
    return f"{head}.{1 if bits == '24' else int(last) - 1}/{bits}"


def run(*words, text=None):
    try:
        done = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise CannotBuild(f"the `{words[0]}` program is missing") from error
    if done.returncode != 0:
        raise CannotBuild(f"{' '.join(words)}: {done.stderr.strip()}\n{text or ''}")
    return done.stdout
