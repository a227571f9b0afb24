"""Draws a random topology from a seed: data only, no namespace is touched here."""

import random

# What a NIC may send at most, in Mbit/s. All NICs of a fabric have one rate, so that every pairing of them carries as much.
RATES = (100, 150, 200, 300)
# All NICs of a node together, so that two CPUs are not the limit.
MOST_MBIT = 1200
KINDS = ("subnet", "host-routes", "point-to-point", "routed", "one-subnet", "alone")


class Nic:
    """One interface of a node: `device` carries the address, `port` is the veth below it."""

    def __init__(self, node, name, fabric, addresses):
        self.node, self.name, self.fabric, self.addresses = node, name, fabric, addresses
        self.down = False
        self.firewall = None  # "drop" or "reject": new connections that come in at this NIC
        self.same_index = False  # whether both ends of its veth have one interface number
        self.upper = None  # "bridge" or "macvlan" on top of it, which has the address

    @property
    def device(self):
        return {"bridge": "br", "macvlan": "mv"}[self.upper] + self.name if self.upper else self.name

    def describe(self):
        marks = [self.fabric["kind"], ",".join(self.addresses), f"{self.fabric['mbit']}mbit"]
        marks += ["down"] * self.down + [self.firewall] * bool(self.firewall) + [self.upper] * bool(self.upper)
        return f"{self.device}({' '.join(marks)})"


class Topology:
    def __init__(self, seed, firewalls=True):
        self.seed = seed
        draw = random.Random(seed)
        self.nodes = draw.randint(2, 4)
        self.fabrics, self.nics = [], [[] for _ in range(self.nodes)]
        wanted = draw.randint(1, 8)
        while max(map(len, self.nics)) < wanted:
            self._add_fabric(draw, wanted)
        for nics in self.nics:
            self._name(draw, nics)
        self._limit()
        for nic in self.all_nics():
            nic.down = draw.random() < 0.07
            nic.same_index = draw.random() < 0.3
            if firewalls and not nic.down and draw.random() < 0.06:
                nic.firewall = draw.choice(("drop", "drop", "reject"))
            if nic.fabric["kind"] in ("subnet", "host-routes") and draw.random() < 0.08:
                nic.upper = draw.choice(("bridge", "macvlan"))
                # Beside other interfaces of a container a bridge is one for its own containers, as docker0 is.
                if nic.upper == "bridge" and len(self.nics[nic.node]) > 1:
                    nic.upper = None
        # Interfaces that must not become rails: the kind, per node.
        self.others = [
            [kind for kind in ("vxlan", "tun", "ifb") if draw.random() < 0.25] for _ in range(self.nodes)
        ]
        # A default route by the first routed NIC, as a host has it.
        self.default_route = [draw.random() < 0.5 for _ in range(self.nodes)]
        self.rp_filter = draw.choice((0, 0, 0, 2))
        pairs = [(a, b) for a in range(self.nodes) for b in range(self.nodes) if a != b]
        draw.shuffle(pairs)
        self.pairs = pairs[:2]

    @staticmethod
    def are_joined(near, far):
        """Whether routes lead from one NIC to the other: by one fabric, or by the router."""
        same = near.fabric is far.fabric and near.fabric["kind"] != "alone"
        return same or near.fabric["kind"] == far.fabric["kind"] == "routed"

    def all_nics(self):
        return [nic for nics in self.nics for nic in nics]

    def _add_fabric(self, draw, wanted):
        number = len(self.fabrics)
        kind = draw.choices(KINDS, weights=(6, 4, 2, 5, 2, 1))[0]
        if kind == "point-to-point" and self.nodes != 2:
            kind = "host-routes"
        family = draw.choices(("4", "6", "46"), weights=(6, 2, 2))[0]
        fabric = {"number": number, "kind": kind, "family": family, "mbit": draw.choice(RATES)}
        fabric["bits"] = {
            "subnet": draw.choice((16, 20, 24, 24, 24, 28)),
            "host-routes": 32,
            "point-to-point": draw.choice((31, 30)),
            "routed": draw.choice((31, 31, 30, 24)),
            "one-subnet": 24,
            "alone": 24,
        }[kind]
        self.fabrics.append(fabric)
        members = [node for node in range(self.nodes) if draw.random() < 0.85]
        if kind == "point-to-point":
            members = [0, 1]
        for node in members:
            each = draw.randint(1, 3) if kind == "one-subnet" else 1
            for which in range(each):
                if len(self.nics[node]) < wanted:
                    place = node * 4 + which
                    self.nics[node].append(Nic(node, None, fabric, self._addresses(fabric, node, place)))

    def _addresses(self, fabric, node, place):
        """With their prefixes; the other end of a link to the router has the number below."""
        number, bits, addresses = fabric["number"], fabric["bits"], []
        if fabric["kind"] == "routed":
            host = {31: 1, 30: 2, 24: 11}[bits]
            v4, v6 = f"10.{number + 1}.{node + 1}.{host}/{bits}", f"fd00:{number + 1}:{node + 1}::1/64"
        elif fabric["kind"] == "point-to-point":
            v4 = f"10.{number + 1}.0.{node + (bits == 30)}/{bits}"
            v6 = f"fd00:{number + 1}::{node + 1}/{127 if bits == 31 else 126}"
        else:
            v4 = f"10.{number + 1}.0.{place + 1 if bits == 28 else 10 + place}/{bits}"
            v6 = f"fd00:{number + 1}::{place + 1:x}/{128 if bits == 32 else 64}"
        if "4" in fabric["family"]:
            addresses.append(v4)
        if "6" in fabric["family"]:
            addresses.append(v6)
        return addresses

    def _name(self, draw, nics):
        """In an order of its own per node, in half of them: names pair nothing then."""
        numbers = list(range(len(nics)))
        if draw.random() < 0.5:
            draw.shuffle(numbers)
        for nic, number in zip(nics, numbers):
            nic.name = f"eth{number}"

    def _limit(self):
        # What routers forward between has one rate, too.
        routed = [fabric for fabric in self.fabrics if fabric["kind"] == "routed"]
        for fabric in routed:
            fabric["mbit"] = routed[0]["mbit"]
        most = max(sum(nic.fabric["mbit"] for nic in nics) for nics in self.nics)
        if most > MOST_MBIT:
            for fabric in self.fabrics:
                fabric["mbit"] = max(50, fabric["mbit"] * MOST_MBIT // most)

    def describe(self):
        nodes = (" ".join(nic.describe() for nic in nics) for nics in self.nics)
        others = (f" + {' '.join(kinds)}" if kinds else "" for kinds in self.others)
        return [f"n{at}: {nics or '-'}{more}" for at, (nics, more) in enumerate(zip(nodes, others))]
