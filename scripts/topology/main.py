"""`scripts/topologies`: see there."""

import argparse
import concurrent.futures
import json
import os
import shutil
import signal
import sys
import time

import build
import judge
import plan

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def arguments():
    parser = argparse.ArgumentParser(prog="scripts/topologies")
    parser.add_argument("count", nargs="?", type=positive, default=20, metavar="N")
    parser.add_argument("seed", nargs="?", type=int, default=1, metavar="SEED")
    parser.add_argument("--jobs", type=positive, default=1, help="topologies at once; more than one blurs rates")
    parser.add_argument("--json", metavar="FILE", help="a line of JSON for each topology")
    parser.add_argument("--polyrail", metavar="PROGRAM", help="default: the newest in target")
    parser.add_argument("--prefix", default=f"topo{os.getpid()}", help="of the names of namespaces")
    parser.add_argument("--keep", action="store_true", help="keep the namespaces of the last topology")
    parser.add_argument("--show", action="store_true", help="print each topology, and what both ends of a failure said")
    return parser.parse_args()


def positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}: allowed: 1 and more")
    return number


def newest():
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
    found = [os.path.join(target, kind, "polyrail") for kind in ("release", "debug")]
    found = [path for path in found if os.path.exists(path)]
    if not found:
        fail(3, "no polyrail in target; run: cargo build --release -p polyrail-cli, or give --polyrail PROGRAM")
    return max(found, key=os.path.getmtime)


def fail(code, text):
    print(f"topologies: {text}", file=sys.stderr)
    sys.exit(code)


def one(options, program, seed):
    topology = plan.Topology(seed, firewalls=shutil.which("nft") is not None)
    network = build.Network(topology, f"{options.prefix}-{seed}")
    begun = time.monotonic()
    record = {"seed": seed, "nodes": topology.describe(), "pairs": []}
    try:
        network.up()
        for a, b in topology.pairs:
            record["pairs"].append(judge.pair(network, program, a, b))
    finally:
        if not options.keep:
            network.down()
    record["seconds"] = round(time.monotonic() - begun, 1)
    record["ok"] = not any(pair["faults"] for pair in record["pairs"])
    return record


def line(record):
    nics = "/".join(str(text.count("(")) for text in record["nodes"])
    parts = []
    for pair in record["pairs"]:
        used, share = len(pair.get("used", [])), pair.get("share")
        part = f"n{pair['from']}>n{pair['to']} {used}/{pair['reached']} rails"
        part += f" {share:.2f} of {pair['plain_mbit']} Mbit/s" if share else ""
        part += f" {pair['connect_s']:.1f}s" if "connect_s" in pair else ""
        part += f" [{'; '.join(pair['faults'])}]" if pair["faults"] else ""
        parts.append(part)
    return f"seed {record['seed']:<5} {'ok  ' if record['ok'] else 'FAIL'} {nics:<10} {' | '.join(parts)}"


def show(record):
    for text in record["nodes"]:
        print(f"    {text}")
    for pair in record["pairs"]:
        for end, told in zip(("connecting", "listening"), pair.get("told", [])):
            for text in told.splitlines():
                print(f"    {end}: {text}")


def main():
    options = arguments()
    if os.geteuid() != 0:
        fail(3, "namespaces need root; run: sudo scripts/topologies")
    program = options.polyrail or newest()
    # Like Ctrl-C: what runs ends, and its namespaces are removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    log = open(options.json, "w", encoding="utf-8") if options.json else None
    begun, records = time.monotonic(), []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        seeds = range(options.seed, options.seed + options.count)
        running = [pool.submit(one, options, program, seed) for seed in seeds]
        try:
            for done in running:
                record = done.result()
                records.append(record)
                print(line(record), flush=True)
                if options.show:
                    show(record)
                if log:
                    log.write(json.dumps(record) + "\n")
                    log.flush()
        except build.CannotBuild as error:
            pool.shutdown(cancel_futures=True)
            fail(3, str(error))
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            sys.exit(130)
    sys.exit(summary(records, time.monotonic() - begun))


def summary(records, seconds):
    pairs = [pair for record in records for pair in record["pairs"]]
    bad = [record["seed"] for record in records if not record["ok"]]
    kinds = {}
    for pair in pairs:
        for fault in pair["faults"]:
            kind = " ".join(word for word in fault.split() if not any(one.isdigit() for one in word))
            kinds[kind] = kinds.get(kind, 0) + 1
    connects = sorted(pair["connect_s"] for pair in pairs if pair.get("code") == 0)
    shares = sorted(pair["share"] for pair in pairs if pair.get("share"))
    print(f"\n{len(records)} topologies, {len(pairs)} pairs of nodes in {seconds:.0f} s; {len(bad)} failed")
    print(f"rails: {sum(len(pair.get('used', [])) for pair in pairs)} carried of "
          f"{sum(pair['reached'] for pair in pairs)} that plain TCP reaches; "
          f"{sum(pair.get('missing', 0) for pair in pairs)} left out")
    if connects:
        print(f"connecting: median {connects[len(connects) // 2]:.2f} s, most {connects[-1]:.2f} s")
    if shares:
        print(f"rate over plain TCP: median {shares[len(shares) // 2]:.2f}, least {shares[0]:.2f}")
    for kind, count in sorted(kinds.items(), key=lambda item: -item[1]):
        print(f"{count:5} x {kind}")
    if bad:
        print(f"failed: {' '.join(map(str, bad))}; one again: scripts/topologies 1 {bad[0]} --show")
    return 1 if bad else 0


if __name__ == "__main__":
    main()
