#!/usr/bin/env python3
"""Measures how long `polyrail bench --listen` takes from its start to its line `listening on …`.

    sudo docs/measure/startup.py [--interfaces 64] [--starts 21] [--polyrail PROGRAM] [--json FILE]

Starts the program in a network namespace with that many interfaces and in one with a single interface, in turn, and
prints the median of each with the fastest and the slowest start, and the median of the differences within a round.
Each interface is a veth with an address of a network of its own, whose other end is in another namespace: `rails=auto`
takes all of them. The times include `ip netns exec`, which enters the namespace.

Needs root and iproute2. Exit codes: 0 measured, 2 wrong arguments, 3 this machine can't measure it.
"""

import argparse
import json
import os
import select
import shutil
import statistics
import subprocess
import sys
import time

MOST = 64
PATIENCE_S = 30


def main():
    options = arguments()
    if os.geteuid() != 0:
        fail("network namespaces need root; run: sudo docs/measure/startup.py")
    if shutil.which("ip") is None:
        fail("there is no `ip`; install iproute2")
    if not os.access(options.polyrail, os.X_OK):
        fail(f"{options.polyrail} is no program; run: cargo build --release -p polyrail-cli, or give --polyrail PROGRAM")
    counts = [1, options.interfaces]
    names = {count: f"startup{os.getpid()}-{count}" for count in counts}
    times = {count: [] for count in counts}
    try:
        for count in counts:
            build(names[count], count)
        for turn in range(options.starts):
            # The first of a round takes turns, too.
            for count in counts if turn % 2 == 0 else reversed(counts):
                times[count].append(start(options.polyrail, names[count]))
    finally:
        for name in names.values():
            remove(name)
    for count in counts:
        what = "interface" if count == 1 else "interfaces"
        print(f"{count:>2} {what:<10} {spread(times[count])} ms to `listening on`, {options.starts} starts")
    more = [many - one for one, many in zip(times[1], times[options.interfaces])]
    print(f"   difference {spread(more)} ms within a round")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"starts": options.starts, "milliseconds": times}, file, indent=1)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--interfaces", type=within(2, MOST), default=MOST, metavar="N", help=f"2 to {MOST}, the most rails of an engine")
    parser.add_argument("--starts", type=within(1, 10_000), default=21, metavar="N", help="in each of the two namespaces")
    parser.add_argument("--polyrail", default="target/release/polyrail", metavar="PROGRAM")
    parser.add_argument("--json", metavar="FILE", help="write the time of every start to this file")
    return parser.parse_args()


def within(least, most):
    def number(text):
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least} to {most}")
        return int(text)

    return number


def fail(text):
    print(f"startup: {text}", file=sys.stderr)
    sys.exit(3)


def build(name, count):
    """Makes a namespace with these interfaces, and waits until all are up."""
    ip("netns", "add", name)
    ip("netns", "add", f"{name}-far")
    far = ["link set lo up"]
    near = ["link set lo up"]
    for at in range(count):
        near.append(f"link add eth{at} type veth peer name eth{at} netns {name}-far")
        near.append(f"addr add 10.77.{at}.1/24 dev eth{at}")
        near.append(f"link set eth{at} up")
        far.append(f"link set eth{at} up")
    ip("-n", name, "-batch", "-", lines=near)
    ip("-n", f"{name}-far", "-batch", "-", lines=far)
    deadline = time.monotonic() + PATIENCE_S
    while not is_up(name, count):
        if time.monotonic() > deadline:
            fail(f"the {count} interfaces were not up after {PATIENCE_S} s")
        time.sleep(0.05)


def is_up(name, count):
    """Whether all interfaces have a carrier, and no address is tentative any more."""
    links = ip("-n", name, "-o", "link", "show", "type", "veth").splitlines()
    tentative = ip("-n", name, "-o", "-6", "addr", "show", "tentative")
    return sum("LOWER_UP" in link for link in links) == count and not tentative


def start(program, name):
    """Milliseconds from the start of the program to its first line."""
    command = ["ip", "netns", "exec", name, program, "bench", "--listen"]
    begun = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        ready, _, _ = select.select([process.stdout], [], [], PATIENCE_S)
        line = process.stdout.readline() if ready else ""
        took_ms = (time.perf_counter() - begun) * 1e3
        process.kill()
        _, errors = process.communicate()
    if not line.startswith("listening on "):
        fail(f"{' '.join(command)} printed {line.strip()!r} instead of `listening on …`\n{errors}")
    return took_ms


def remove(name):
    for one in (name, f"{name}-far"):
        subprocess.run(["ip", "netns", "del", one], stderr=subprocess.DEVNULL, check=False)


def ip(*arguments, lines=()):
    done = subprocess.run(["ip", *arguments], input="\n".join(lines), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        fail(f"`ip {' '.join(arguments)}` failed: {done.stderr.strip()}")
    return done.stdout


def spread(samples):
    return f"{statistics.median(samples):6.1f} ({min(samples):.1f} to {max(samples):.1f})"


if __name__ == "__main__":
    main()
