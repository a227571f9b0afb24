#!/usr/bin/env python3
"""How much of the sum of its rails a transfer gets: rails x channels x sizes x depth, as a table.

    docs/measure/rails.py table [--labs RATES ...] [--channels N ...] [--sizes LIST] [--depths N ...]
    docs/measure/rails.py change [--rates RATES] [--rail N] [--falls-to RATE]
        [--polyrail PROGRAM ...] [--rounds N] [--time TIME] [--json FILE] [-- BENCH OPTIONS]

`table` measures in labs (root, or user namespaces) each case in turn, round after round, and prints
the median share of the rails' rates, what lies between the lowest and the highest, and the share of
what the rails carry alone, measured in the same run. Packet headers take 4 to 6 % of the rates.
Several programs are measured in turn, and printed side by side. 0 channels are the default.

`change` has a rail fall in the middle of a run and come back, and prints which share of what is there
a transfer gets from 100 ms after each change on.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import time

LABS = ["40gbit,20gbit,10gbit,10gbit", "4gbit,2gbit,1gbit,1gbit", "4x10gbit", "4x25gbit"]
SIZES = "1MiB,4MiB,16MiB,256MiB"
SETTLES_MS = 100
CHANGE_AFTER_S, CHANGE_FOR_S = 6, 6


def main():
    arguments, extra = sys.argv[1:], []
    if "--" in arguments:
        at = arguments.index("--")
        arguments, extra = arguments[:at], arguments[at + 1 :]
    options = parser().parse_args(arguments)
    options.extra = extra
    found = options.measure(options)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=2)


def parser():
    top = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def command(function, name):
        sub = commands.add_parser(name, help=function.__doc__.splitlines()[0])
        sub.set_defaults(measure=function)
        sub.add_argument("--polyrail", nargs="+", default=["target/release/polyrail"])
        sub.add_argument("--rounds", type=int, default=5, help="alternating rounds")
        sub.add_argument("--json", help="file for every sample")
        return sub

    sub = command(table, "table")
    sub.add_argument("--labs", nargs="+", default=LABS, metavar="RATES")
    sub.add_argument("--channels", nargs="+", type=int, default=[0, 4, 8, 16, 32], metavar="N")
    sub.add_argument("--sizes", default=SIZES)
    sub.add_argument("--depths", nargs="+", type=int, default=[1, 0], metavar="N",
                     help="0 is the bench's own")
    sub.add_argument("--time", default="2s", help="of each case in each round")
    sub.add_argument("--no-alone", action="store_true", help="don't measure the rails alone")
    sub = command(change, "change")
    sub.add_argument("--rates", default="2x10gbit", help="the lab's rails")
    sub.add_argument("--rail", type=int, default=0)
    sub.add_argument("--falls-to", default="1gbit")
    sub.add_argument("--size", default="16MiB")
    return top


def table(options):
    """Shares of the sum of the rails."""
    cases = [
        (lab, channels, depth)
        for lab in options.labs
        for channels in options.channels
        for depth in options.depths
    ]
    samples = {}
    for number in range(options.rounds):
        for case in cases:
            for program in options.polyrail:
                for result in bench(options, program, *case):
                    key = (*case, result["size_bytes"], program)
                    alone = result["alone"]["ratio"] if result.get("alone") else None
                    samples.setdefault(key, []).append((result["gb_per_s"], alone))
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
    print(f"{'rails':32} {'channels':>8} {'size':>8} {'depth':>5}  share of rates (spread), of alone")
    found = []
    for case in sorted({key[:-1] for key in samples}, key=lambda c: (cases.index(c[:3]), c[3])):
        lab, channels, depth, size = case
        cells = []
        for program in options.polyrail:
            rates = [rate / total(lab) for rate, _ in samples[(*case, program)]]
            alone = [ratio for _, ratio in samples[(*case, program)] if ratio is not None]
            cell = f"{statistics.median(rates):.3f} ({min(rates):.3f} to {max(rates):.3f})"
            cells.append(cell + (f", {statistics.median(alone):.3f}" if alone else ""))
            found.append({"rails": lab, "channels": channels, "depth": depth, "size": size,
                          "program": program, "share_of_rates": rates, "share_of_alone": alone})
        shown = [channels or "default", f"{size >> 10} KiB", depth or "auto"]
        print(f"{lab:32} {shown[0]:>8} {shown[1]:>8} {shown[2]:>5}  " + "  |  ".join(cells))
    return found


def bench(options, program, lab, channels, depth):
    command = [program, "bench", "--lab", lab, "--sizes", options.sizes, "--json", "-"]
    command += ["--time", options.time, "--rounds", "3"]
    command += ["--set", f"channels={channels}"] if channels else []
    command += ["--depth", str(depth)] if depth else []
    command += [] if options.no_alone else ["--against", "alone"]
    return json.loads(run([*command, *options.extra]))["results"]


def change(options):
    """A rail falls in the middle of a run and comes back."""
    found = []
    for number in range(options.rounds):
        for program in options.polyrail:
            shares = change_once(options, program)
            print(f"round {number + 1}, {program}: " + ", ".join(
                f"{name} {share:.3f}" for name, share in shares.items()))
            found.append({"program": program, **shares})
    return found


def change_once(options, program):
    name, rail = f"change-{time.time_ns() % 10**9}", f"rail{options.rail}"
    run([program, "lab", "up", name, "--rails", options.rates])
    inside = {side: [program, "lab", "exec", name, side, "--", program, "bench"] for side in "ab"}
    set_rate = [program, "lab", "set", name, rail, "--rate"]
    rates = rates_of(options.rates)
    with contextlib.ExitStack() as ends:
        ends.callback(run, [program, "lab", "down", name])
        server = start([*inside["b"], "--listen", "--rails", "rail"], ends)
        address = server.stdout.readline().split()[-1]
        what = ["--sizes", options.size, "--time", "20s", "--rounds", "200", "--verify", "sample"]
        where = ["--connect", address, "--rails", "rail", "--json", "-"]
        client = start([*inside["a"], *where, *what, *options.extra], ends)
        time.sleep(CHANGE_AFTER_S)
        run([*set_rate, options.falls_to])
        fell_ms = time.time() * 1e3
        time.sleep(CHANGE_FOR_S)
        run([*set_rate, spoken(rates[options.rail])])
        rose_ms = time.time() * 1e3
        result = json.loads(client.communicate(timeout=300)[0])["results"][0]

    def rate(begin_ms, end_ms):
        inside = [
            sample
            for sample in result["samples"]
            if begin_ms <= sample["started_unix_ms"]
            and sample["started_unix_ms"] + sample["seconds"] * 1e3 <= end_ms
        ]
        if not inside:
            span = f"{begin_ms - fell_ms:.0f} to {end_ms - fell_ms:.0f} ms after the fall"
            sys.exit(f"no sample lies within {span}: the run was over too soon or began too late")
        return sum(s["bytes"] for s in inside) / sum(s["seconds"] for s in inside)

    before = rate(0, fell_ms - 200)
    left = before * (1 - (rates[options.rail] - rates_of(options.falls_to)[0]) / sum(rates))
    return {
        "before, of the rates": before * 8 / 1e9 / sum(rates),
        "slow, of what is left": rate(fell_ms + SETTLES_MS, rose_ms - 200) / left,
        "back, of before": rate(rose_ms + SETTLES_MS, float("inf")) / before,
    }


def total(lab):
    """The sum of the rails' rates in GB/s."""
    return sum(rates_of(lab)) / 8


def rates_of(text):
    """Reads the rates of a lab, in Gbit/s."""
    units = {"gbit": 1.0, "mbit": 1e-3, "kbit": 1e-6}
    rates = []
    for item in text.split(","):
        count, _, rate = item.rpartition("x")
        unit = next(unit for unit in units if rate.endswith(unit))
        rates += [float(rate.removesuffix(unit)) * units[unit]] * int(count or 1)
    return rates


def spoken(gbit):
    return f"{round(gbit * 1000)}mbit"


def start(command, ends):
    """Starts a process that is ended with `ends`."""
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    process = subprocess.Popen(command, **quiet)
    ends.callback(lambda: (process.kill(), process.wait()))
    return process


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
