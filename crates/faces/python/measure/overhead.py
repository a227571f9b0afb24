"""What Python costs: `polyrail bench` and the same writes from Python take turns.

    python crates/faces/python/measure/overhead.py --polyrail target/release/polyrail [--rounds 5] [--json FILE]

Both have two processes on four loopback addresses, as many writes outstanding, prepared once, and go
round 256 MiB of memory, far more than caches hold. Build the package with `pip install ./crates/faces/python` (it is optimized then).
The ratio is that of the medians of the times for a write: 64 KiB may cost 1.3 times as much as from
Rust, 1 MiB 1.05 times. Let nothing else run.
"""

import argparse
import itertools
import json
import multiprocessing
import statistics
import subprocess
import time

import polyrail

RAILS = "127.0.0.1,127.0.0.2,127.0.0.3,127.0.0.4"
GOALS = {64 << 10: 1.3, 1 << 20: 1.05}
WARM_UP_S = 0.2
WORKING_SET_BYTES = 256 << 20


def target(pipe, nbytes):
    """The other end: memory that is written to."""
    with polyrail.Engine(rails=RAILS, path="device", env=False) as engine, engine.register(bytearray(nbytes)) as region:
        pipe.send((engine.metadata(), region.describe()))
        pipe.recv()


def from_python(size, depth, seconds):
    """Seconds for each write, over as many seconds."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    other = context.Process(target=target, args=(there, WORKING_SET_BYTES))
    other.start()
    metadata, description = here.recv()
    with polyrail.Engine(rails=RAILS, path="device", env=False) as engine:
        peer = engine.add_peer(metadata)
        local, remote = engine.register(bytearray(WORKING_SET_BYTES)), engine.import_region(description)
        places = [slice(at, at + size) for at in range(0, WORKING_SET_BYTES, size)]
        writes = [engine.prepare_write(peer, local[place], remote[place]) for place in places]

        def run(until):
            turns = itertools.cycle(writes)
            under_way = [next(turns).post() for _ in range(depth)]
            count = 0
            while time.perf_counter() < until:
                for at in range(depth):
                    under_way[at].wait()
                    under_way[at] = next(turns).post()
                count += depth
            for transfer in under_way:
                transfer.wait()
            return count + depth

        run(time.perf_counter() + WARM_UP_S)
        start = time.perf_counter()
        count = run(start + seconds)
        each = (time.perf_counter() - start) / count
    here.send("done")
    other.join()
    return each


def from_rust(program, size, depth, seconds):
    """The same by `polyrail bench`."""
    command = [program, "bench", "--sizes", str(size), "--depth", str(depth), "--rounds", "1"]
    command += ["--time", f"{round(seconds * 1000)}ms", "--verify", "off", "--place", "none", "--rails", RAILS]
    report = json.loads(subprocess.run([*command, "--json", "-"], check=True, capture_output=True).stdout)
    (result,) = report["results"]
    return size / (result["gb_per_s"] * 1e9)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--polyrail", default="target/release/polyrail", help="the program")
    parser.add_argument("--sizes", type=int, nargs="+", default=sorted(GOALS), help="bytes of a write")
    parser.add_argument("--depths", type=int, nargs="+", default=[1, 16], help="writes outstanding")
    parser.add_argument("--rounds", type=int, default=5, help="alternating rounds")
    parser.add_argument("--time", type=float, default=2.0, help="seconds of each round")
    parser.add_argument("--json", help="file for every sample")
    options = parser.parse_args()
    found = []
    for size in options.sizes:
        for depth in options.depths:
            samples = {"rust": [], "python": []}
            for _ in range(options.rounds):
                samples["rust"].append(from_rust(options.polyrail, size, depth, options.time))
                samples["python"].append(from_python(size, depth, options.time))
            ratios = sorted(p / r for p, r in zip(samples["python"], samples["rust"]))
            ratio = statistics.median(samples["python"]) / statistics.median(samples["rust"])
            goal = GOALS.get(size)
            found.append({"size": size, "depth": depth, "ratio": ratio, "goal": goal, **samples})
            print(
                f"{size:>9} bytes, depth {depth:>2}: {ratio:.3f} x the time of Rust "
                f"({ratios[0]:.3f} to {ratios[-1]:.3f}; goal {goal or 'none'})"
            )
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=2)


if __name__ == "__main__":
    main()
