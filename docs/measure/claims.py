#!/usr/bin/env python3
"""Repeats the comparisons of README and docs/performance.md, and prints the range that was seen.

    docs/measure/claims.py [--polyrail PROGRAM] [--runs 5] [--peers PEERS] [--json FILE] [CLAIM ...]

Each run is a measurement in turn of its own, with several rounds and its own ratio. The runs of all
claims take turns too, so that a slow minute does not meet one claim alone. Without a CLAIM it takes
all for which the programs are there. One line for each claim: the lowest and the highest ratio of the
runs, and their median. `undecided` stands where that range holds 1. The file has every figure and the
machine.
"""

import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
BENCH = ["bench", "--against", "raw", "--json", "-"]

# What a ratio is of: a rate (more is better) or a time (less is better).
RATE, TIME = "rate", "time"
CLAIMS = {
    "sockets-256MiB": (RATE, [*BENCH, "--sizes", "256MiB", "--time", "4s", "--verify", "sample"]),
    "sockets-64KiB": (RATE, [*BENCH, "--sizes", "64KiB", "--time", "3s", "--verify", "sample"]),
    "nixl-64MiB": (RATE, ["nixl"]),
    "nixl-64MiB-cubic": (RATE, ["nixl", "--cc", "cubic", "--", "--set", "congestion=cubic"]),
    "ucx-8B-time": (TIME, ["ucx-latency", "--", "--preset", "latency"]),
    "ucx-8B-rate": (RATE, ["ucx-rate"]),
    "mooncake-64KiB": (RATE, ["mooncake"]),
    "mooncake-64KiB-bbr": (RATE, ["mooncake", "--", "--set", "congestion=bbr"]),
    "mooncake-1MiB": (RATE, ["mooncake", "--block", "1048576", "--batch", "16"]),
}


def main():
    options = parser().parse_args()
    names = options.claim or [name for name, (_, what) in CLAIMS.items() if options.peers or what[0] == "bench"]
    here = machine(options.polyrail)
    ratios = {name: [] for name in names}
    for run in range(options.runs):
        for name in names:
            ratios[name].append(ratio(options, CLAIMS[name][1]))
            print(f"run {run + 1}: {name} {ratios[name][-1]:.3g}", file=sys.stderr)
    claims = {name: judged(CLAIMS[name][0], values) for name, values in ratios.items()}
    for name, claim in claims.items():
        print(f"{name:18}  {claim['unit']} × {claim['text']}")
    if options.json:
        report = {"machine": here, "runs": options.runs, "claims": claims}
        options.json.write_text(json.dumps(report, indent=2) + "\n")


def parser():
    top = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    top.add_argument("--polyrail", default="target/release/polyrail", help="the program")
    top.add_argument("--runs", type=int, default=5, help="runs of each claim")
    top.add_argument("--peers", help="the folder that the end of docs/performance.md makes")
    top.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write all figures to FILE")
    top.add_argument("claim", nargs="*", choices=[[], *CLAIMS], help="the claims, or all")
    return top


def ratio(options, what):
    """Polyrail over the other one, the median of the rounds of one run."""
    if what[0] == "bench":
        report = json.loads(output([options.polyrail, *what]))
        return report["results"][0]["against"]["ratio"]
    figures = [sys.executable, str(HERE / "figures.py"), "--polyrail", options.polyrail, "--rounds", "3"]
    return json.loads(output([*figures, what[0], options.peers, *what[1:]]))["ratio"]


def output(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


def judged(unit, values):
    low, high = min(values), max(values)
    text = f"{statistics.median(values):.2f} ({low:.2f} to {high:.2f})"
    if low <= 1 <= high:
        text += ", undecided"
    elif (high < 1) == (unit == RATE):
        text += ", slower"
    return {"unit": unit, "text": text, "low": low, "high": high, "runs": values}


def machine(polyrail):
    models = {line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")}
    return {
        "cpu": ", ".join(sorted(models)),
        "cpus": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "load_before": os.getloadavg()[0],
        "congestion": pathlib.Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip(),
        "polyrail": output([polyrail, "--version"]).strip(),
    }


if __name__ == "__main__":
    main()
