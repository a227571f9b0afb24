#!/usr/bin/env python3
"""PyTorch collectives between two namespaces of a lab: rails that are the limit.

Two ranks, each with a GPU of its own and in one of the two namespaces of `polyrail lab`, so that each
has its own NICs. Configurations take turns, round after round, in each lab. Each collective is first
checked element by element. The limit is the sum of the rails one way; packet headers take 4 to 6 %
of it. Needs root, 2 GPUs and PyTorch with NCCL.

  torch_lab.py --polyrail polyrail --lib libnccl-net-polyrail.so --rails 4x10gbit --out results.json
"""

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time

import torch

from torch_nccl import configurations, parse_size, run_rank, show, summarise

LAB = "nccl"
SIDES = ["a", "b"]


class Lines:
    """What a rank found, for the process that started it."""

    @staticmethod
    def put(row):
        print(json.dumps(row), flush=True)


def rank(number, store, env, work, seconds):
    # NCCL takes two namespaces of one kernel for one host unless it is told otherwise.
    lab = {"NCCL_HOSTID": SIDES[number], "NCCL_SOCKET_IFNAME": "rail", "LOCAL_WORLD_SIZE": "1"}
    run_rank(number, 2, env | lab, f"file://{store}", work, seconds, Lines)


def launch(options, env, congestion, work):
    """Rows of both ranks; an error text if one failed or hangs."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, os.path.abspath(__file__), "--rank"]
        job = json.dumps([os.path.join(folder, "store"), env, work, options.seconds])
        inside = ["sh", "-c", 'test -z "$1" || sysctl -qw net.ipv4.tcp_congestion_control=$1 ||'
                  ' echo "$1" >/proc/sys/net/ipv4/tcp_congestion_control; shift; exec "$@"', "sh", congestion or ""]
        ranks = [subprocess.Popen([options.polyrail, "lab", "exec", LAB, side, "--", *inside, *words, str(n), job],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                 for n, side in enumerate(SIDES)]
        rows, deadline, error = [], time.monotonic() + options.limit, None
        for process in ranks:
            try:
                out, err = process.communicate(timeout=max(1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                for other in ranks:
                    other.kill()
                out, err = process.communicate()
                error = f"not over after {options.limit} s"
            if process.returncode and not error:
                error = f"exit code {process.returncode}: {err.strip().splitlines()[-1:]}"
            rows += [tuple(json.loads(line)) for line in out.splitlines() if line.startswith("[")]
        return rows, error


def limit_of(rails):
    """GB/s one way of rates as `polyrail lab` takes them."""
    total = 0.0
    for part in rails.split(","):
        many = re.fullmatch(r"(?:(\d+)x)?([\d.]+)(g|m)bit", part)
        if not many:
            raise SystemExit(f"--rails: `{part}` is no rate; like 4x10gbit or 40gbit,20gbit")
        total += int(many[1] or 1) * float(many[2]) * {"g": 1.0, "m": 1e-3}[many[3]]
    return total / 8


def measure(options, rails, chosen, work):
    subprocess.run([options.polyrail, "lab", "up", LAB, "--rails", rails], check=True,
                   stdout=subprocess.DEVNULL)
    rounds = []
    try:
        for number in range(options.rounds):
            this = {}
            for name in list(chosen) if number % 2 == 0 else list(reversed(chosen)):
                env, congestion = chosen[name]
                rows, error = launch(options, env, congestion, work)
                this[name] = {"results": summarise(rows, 2), "error": error}
                if error:
                    print(f"{rails}, round {number + 1}, {name}: {error}", flush=True)
            rounds.append(this)
    finally:
        subprocess.run([options.polyrail, "lab", "down", LAB], stdout=subprocess.DEVNULL)
    return rounds


def table(rails, rounds, chosen, work):
    limit = limit_of(rails)
    print(f"\n{rails}: {limit:.2f} GB/s one way; medians of {len(rounds)} rounds")
    for name, size in work:
        key = f"{name} {size}"
        medians = {}
        for config in chosen:
            found = [r[config]["results"].get(key) for r in rounds]
            us = [result["us"] for result in found if result]
            if not us:
                print(f"  {name} {show(size):8} {config:14} no result")
                continue
            medians[config] = statistics.median(us)
            bus = statistics.median(result["busbw"] for result in found if result)
            wrong = sum(result["wrong"] for result in found if result)
            spread = (max(us) - min(us)) / 2 / statistics.median(us) * 100
            best = min((us for other, us in medians.items() if other.startswith("socket")), default=None)
            ratio = f"{best / medians[config]:5.2f} x best socket" if best and not config.startswith("socket") else ""
            print(f"  {name} {show(size):8} {config:14} {medians[config]:10.1f} us ±{spread:3.0f} %  {bus:6.2f} GB/s  "
                  f"{bus / limit:5.2f} of the rails  {wrong} wrong  {ratio}", flush=True)


def main():
    if sys.argv[1:2] == ["--rank"]:
        number, job = int(sys.argv[2]), json.loads(sys.argv[3])
        return rank(number, job[0], job[1], [tuple(item) for item in job[2]], job[3])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--polyrail", default="polyrail", help="the program")
    parser.add_argument("--lib", required=True, help="the plugin, as a path")
    parser.add_argument("--before", help="another build of the plugin, measured beside it as `before`")
    parser.add_argument("--rails", nargs="+", default=["4x10gbit", "4x25gbit", "40gbit,20gbit,10gbit,10gbit"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.3, help="least time per collective and size")
    parser.add_argument("--limit", type=float, default=60, help="most time per launch")
    parser.add_argument("--configs", default="socket-4x4,polyrail")
    parser.add_argument("--env", default="", help="KEY=VALUE,... for Polyrail, and for a second launch of sockets")
    parser.add_argument("--work", default="all_reduce:8,64KiB,16MiB,256MiB send_recv:256MiB")
    parser.add_argument("--out", help="JSON with every round")
    options = parser.parse_args()
    pairs = (item.split(":") for item in options.work.split())
    work = [(name, parse_size(size)) for name, sizes in pairs for size in sizes.split(",")]
    extra = dict(pair.split("=", 1) for pair in options.env.split(",") if pair)
    known = configurations(os.path.abspath(options.lib))
    chosen = {}
    for name in options.configs.split(","):
        env, congestion = known[name]
        if name.startswith("socket"):
            chosen[name] = (env, congestion)
        if extra or not name.startswith("socket"):
            chosen[f"{name}+env" if name.startswith("socket") else name] = (env | extra, congestion)
    if options.before:
        chosen["before"] = (configurations(os.path.abspath(options.before))["polyrail"][0] | extra, None)
    report = {"gpu": torch.cuda.get_device_name(0), "cpus": os.cpu_count(), "kernel": platform.release(),
              "nccl": ".".join(map(str, torch.cuda.nccl.version())),
              "configurations": {name: env for name, (env, _) in chosen.items()}, "labs": {}}
    for rails in options.rails:
        rounds = measure(options, rails, chosen, work)
        report["labs"][rails] = rounds
        table(rails, rounds, chosen, work)
        if options.out:
            with open(options.out, "w", encoding="utf-8") as out:
                json.dump(report, out, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
