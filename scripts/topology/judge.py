"""Runs `polyrail bench` between two nodes of a network, and judges what it did by what plain TCP did."""

import json
import os
import signal
import subprocess
import tempfile
import time

import reach

CONNECT_MOST_S = 2.0
HANG_S = 30
LEAST_SHARE = 0.95
MEASURE_S = 0.8
TRIES = 3
NO_RAILS = ("vxlan.calico", "tailscale0", "ifb0")


class Ends:
    """A `bench --listen` on node b, and runs of `bench --connect` on node a."""

    def __init__(self, network, program, a, b, listen):
        self.network, self.program, self.a = network, program, a
        self.out, self.err = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")
        words = self.command(b, "--listen", *([f"{bracket(listen)}:0"] if listen else []))
        self.server = subprocess.Popen(words, stdout=self.out, stderr=self.err, env=environment())
        self.told_a = ""
        self.target = self._target()

    def command(self, node, *words):
        inside = ["ip", "netns", "exec", self.network.namespace(f"n{node}")]
        return [*inside, self.program, "bench", *words]

    def _target(self):
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline:
            for line in self.told(self.out).splitlines():
                if line.startswith("elsewhere:"):
                    return line.split()[-1]
            if self.server.poll() is not None:
                return None
            time.sleep(0.01)
        return None

    def connect(self, *options):
        """Code, report or `None`, seconds; the code is `None` for one that hung."""
        words = self.command(self.a, "--connect", self.target, *options)
        begun, code = time.monotonic(), None
        # Files, as whatever it starts may keep a pipe open.
        with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
            client = subprocess.Popen(words, stdout=stdout, stderr=stderr, env=environment(), start_new_session=True)
            try:
                code = client.wait(HANG_S)
            except subprocess.TimeoutExpired:
                os.killpg(client.pid, signal.SIGKILL)
                client.wait()
            out, err = self.told(stdout), self.told(stderr)
        seconds = time.monotonic() - begun
        try:
            report = json.loads(out)
            err += "\n".join(report.get("notes") or []) + (report.get("error") or "")
        except ValueError:
            report = None
            # Its table names rails that carry.
            err += out if code != 0 else ""
        self.told_a += err + "\n"
        return code, report, seconds

    @staticmethod
    def told(file):
        file.flush()
        return os.pread(file.fileno(), 1 << 20, 0).decode("utf-8", "replace")

    def end(self):
        self.server.kill()
        code = self.server.wait()
        told = self.told(self.out) + self.told(self.err)
        self.out.close()
        self.err.close()
        return code, told


def pair(network, program, a, b):
    """What became of node a connecting to node b, as data; `faults` says what must not be."""
    there, back = reach.reached(network, a, b), reach.reached(network, b, a)
    either = set(there) | {(i, j) for j, i in back}
    nics = network.topology.nics
    # A connection that is bound to a device also goes where no route leads, as the kernel then takes every address for
    # one of the device's own network.
    clean = {(i, j) for j, i in back if (i, j) in there and network.topology.are_joined(nics[a][i], nics[b][j])}
    result = {"from": a, "to": b, "reached": len(reach.matching(either)), "clean": len(reach.matching(clean))}
    faults = result["faults"] = []
    # Who connects names an address that can be reached, one that answers both ways if there is one.
    known = sorted(clean) or sorted(there)
    # `auto` takes a NIC's IPv4 address where it has one.
    known.sort(key=lambda pair: ":" in there[pair][1])
    ends = Ends(network, program, a, b, there[known[0]][1] if known else None)
    try:
        if ends.target is None:
            if known:
                faults.append("it does not listen on an address that can be reached")
            return result
        code, _, seconds = ends.connect("--sizes", "8", "--iters", "1", "--rounds", "1", "--json", "none")
        result |= {"code": code, "connect_s": round(seconds, 2)}
        if code is None:
            faults.append("hang while connecting")
        elif code != 0:
            if code not in (2, 3, 4):
                faults.append(f"exit code {code}")
            if clean:
                faults.append("no connection")
            elif not ends.told_a.strip():
                faults.append("no reason at the connecting end")
            return result
        else:
            # Plain TCP tries once: where several NICs answer ARP, another try may take another way.
            if not any(network.topology.are_joined(near, far) for near in nics[a] for far in nics[b]):
                faults.append("it connected where no network joins them")
            if seconds > CONNECT_MOST_S:
                faults.append(f"connecting took {seconds:.1f} s")
            carry(network, ends, a, b, there, (either, clean), result)
        return result
    finally:
        code, told_b = ends.end()
        if "panicked" in ends.told_a + told_b or code not in (-9, 0, 2, 3, 4):
            faults.append(f"a crash (the listening end: {code})")
        explain(network, a, b, either, result, ends.told_a, told_b)
        result["told"] = [ends.told_a, told_b] if faults else []


def carry(network, ends, a, b, there, edges, result):
    either, clean = edges
    nics = network.topology.nics[a]
    # What all rails carry in 80 ms: enough to keep them busy, and soon over at the end of a sample.
    mbit = sum(nic.fabric["mbit"] for nic in nics if not nic.down)
    depth = max(4, mbit // 100)
    best = {}
    for _ in range(TRIES):
        # A number of transfers instead of a time: `bench` then measures nothing else.
        code, report, _ = ends.connect(
            "--sizes", "1MiB", "--depth", str(depth), "--iters", str(max(8, int(mbit / 8 * MEASURE_S))),
            "--warmup", "100ms", "--rounds", "1", "--verify", "sample", "--json", "-",
        )
        if code is None:
            result["faults"].append("hang while measuring")
            return
        if code != 0 or not report or not report["results"]:
            result["faults"].append(f"measuring ended with {code}")
            return
        rails = report["results"][0]["rails"]
        used = {rail["name"] for rail in rails if rail["bytes"] > 0}
        mbit = report["results"][0]["gb_per_s"] * 8000
        # Everything that must carry, and what else did.
        also = {(i, j) for i, j in either & set(there) if nics[i].device in used}
        ways = [(i, *there[i, j]) for i, j in reach.matching((clean & set(there)) | also)]
        plain = reach.plain_rate(network, a, b, ways, MEASURE_S)
        share = mbit / plain if plain else None
        if not best or (share or 0) > (best["share"] or 0):
            busy = max(sample.get("machine_busy_share") or 0 for sample in report["results"][0]["samples"])
            best = {"used": sorted(used), "mbit": round(mbit), "plain_mbit": plain and round(plain), "share": share,
                    "busy": round(busy, 2)}
        if share is None or share >= LEAST_SHARE:
            break
    result |= best
    for name in NO_RAILS:
        if name in best["used"]:
            result["faults"].append(f"{name} carried")
    if best["share"] is not None and best["share"] < LEAST_SHARE:
        result["faults"].append(f"{best['share']:.2f} of what plain TCP carries, CPUs {best['busy']:.0%} busy")


def explain(network, a, b, either, result, told_a, told_b):
    """Each rail that could carry and did not must be named at both ends."""
    if "used" not in result:
        return
    missing = result["reached"] - len(result["used"])
    result["missing"] = max(0, missing)
    if missing <= 0:
        return
    nics_a, nics_b = network.topology.nics[a], network.topology.nics[b]
    of_a = [nic for i, nic in enumerate(nics_a) if nic.device not in result["used"] and any(i == near for near, _ in either)]
    of_b = [nic for j, nic in enumerate(nics_b) if any(j == far for _, far in either)]
    for end, own, other, told in (("connecting", of_a, of_b, told_a), ("listening", of_b, of_a, told_b)):
        lines = [line for line in told.splitlines() if not line.startswith(("threads:", "listening on", "elsewhere:"))]
        told = "\n".join(lines)
        named = max(sum(is_named(nic, "here", told) for nic in own),
                    sum(is_named(nic, "at the other side", told) for nic in other))
        if named < missing:
            result["faults"].append(f"{missing} rails do not carry, without a reason at the {end} end")


def is_named(nic, side, told):
    """By its name or an address of it, in the log or as what carries nothing."""
    words = [f"{nic.device} {side}", f"{nic.device} (", f"{nic.device}, "]
    for address in (one.split("/")[0] for one in nic.addresses):
        words += [f"to {bracket(address)}:", f"from {address} through"]
    return any(word in told for word in words)


def bracket(address):
    return f"[{address}]" if ":" in address else address


def environment():
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("POLYRAIL_", "NCCL_"))}
    return kept | {"POLYRAIL_CONFIG": ""}
