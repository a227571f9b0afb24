#!/usr/bin/env python3
"""Runs `polyrail bench` with several sets of options in turn and compares them round by round.

    docs/measure/turns.py [--polyrail PROGRAM] [--rounds 5] [--json FILE] [COMMON ...] -- LABEL: OPTIONS -- LABEL: OPTIONS ...

    docs/measure/turns.py --sizes 1GiB -- none: --set payload=none -- aead: --set payload=aead
    docs/measure/turns.py --sizes 64KiB --depth 256 -- old: --polyrail ./old -- new:

The first set is the baseline. One line for each size and set: the median of the rates with the slowest
and the fastest round, CPU time, the median of the rounds' ratios to the baseline, and the longest
transfer. A set may name a program of its own, so two builds can take turns.
"""

import argparse
import json
import statistics
import subprocess
import sys


def split(arguments):
    """What stands before, between and after the `--`."""
    groups = [[]]
    for argument in arguments:
        if argument == "--":
            groups.append([])
        else:
            groups[-1].append(argument)
    return groups


def report_of(program, options):
    """The JSON of one run."""
    if "--polyrail" in options:
        at = options.index("--polyrail")
        program, options = options[at + 1], options[:at] + options[at + 2 :]
    run = subprocess.run([program, "bench", *options, "--json", "-"], capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"{program} bench {' '.join(options)} ended with {run.returncode}:\n{run.stderr}")
    return json.loads(run.stdout)


def values_of(result):
    against = result.get("against") or {}
    return {
        "gb_per_s": result["gb_per_s"],
        "cpu_seconds_per_gb": result["cpu_seconds_per_gb"],
        "p50_us": result["latency_us"]["p50"],
        "max_us": result["latency_us"]["max"],
        "to_raw": against.get("ratio"),
        "cpu_to_raw": against.get("cpu_ratio"),
        "rescues": result["rescues"],
    }


def spread(samples, digits):
    if any(sample is None for sample in samples):
        return "-"
    low, middle, high = min(samples), statistics.median(samples), max(samples)
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--polyrail", default="target/release/polyrail")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", help="write every sample to this file")
    first, *sets = split(sys.argv[1:])
    known, common = parser.parse_known_args(first)
    if not sets:
        parser.error("no set of options: put each behind a `--`, as in -- none: --set payload=none")
    for options in sets:
        if not options or not options[0].endswith(":"):
            parser.error(f"a set begins with its label and a colon, not with {' '.join(options) or 'nothing'!r}")
    samples = {}
    for turn in range(known.rounds):
        # Who comes first takes turns, too.
        for label, *options in sets if turn % 2 == 0 else reversed(sets):
            for result in report_of(known.polyrail, [*common, *options])["results"]:
                samples.setdefault(result["size_bytes"], {}).setdefault(label, []).append(values_of(result))
    for size, by_label in samples.items():
        baseline = by_label[sets[0][0]]
        for label, of_rounds in by_label.items():
            values = {name: [sample[name] for sample in of_rounds] for name in of_rounds[0]}
            ratios = [a["gb_per_s"] / b["gb_per_s"] for a, b in zip(of_rounds, baseline)]
            cpu_ratios = [a["cpu_seconds_per_gb"] / b["cpu_seconds_per_gb"] for a, b in zip(of_rounds, baseline)]
            print(
                f"{size:>11} {label:<14} {spread(values['gb_per_s'], 2)} GB/s, CPU {spread(values['cpu_seconds_per_gb'], 3)} s/GB; "
                f"rate {spread(ratios, 2)}, CPU {spread(cpu_ratios, 2)} of {sets[0][0]} "
                f"to sockets {spread(values['to_raw'], 2)}, CPU {spread(values['cpu_to_raw'], 2)}; "
                f"p50 {spread(values['p50_us'], 1)}, max {max(values['max_us']):.0f} us, rescues {sum(r or 0 for r in values['rescues'])}",
                flush=True,
            )
    if known.json:
        with open(known.json, "w", encoding="utf-8") as file:
            json.dump({"common": common, "sets": sets, "samples": samples}, file, indent=1)


if __name__ == "__main__":
    main()
