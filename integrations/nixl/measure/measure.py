"""NIXL over POLYRAIL and over UCX, in turn: writes from one process to another, verified. Prints JSON lines.

python measure.py --size 67108864 --count 1 --rounds 7          one descriptor of 64 MiB
python measure.py --size 16384 --count 4096 --cc bbr,cubic      a list, under both (needs root for --cc)
python measure.py --shapes                                      block 4 KiB to 64 MiB by batch 1 to 1,024
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
CONGESTION = pathlib.Path("/proc/sys/net/ipv4/tcp_congestion_control")
GAP = 2  # blocks lie apart, so that nobody can merge them


def spread(base, size, count):
    stride = size if count == 1 else size * GAP
    return [(base + index * stride, size, 0) for index in range(count)]


def one(backend, size, count, seconds, operation):
    """Runs in a process of its own; prints what it measured."""
    sys.path.insert(0, str(HERE.parent / "tests"))
    from common import Child, add, api, np, pattern

    def agent(name):
        nixl = api()
        made = nixl.nixl_agent(name, nixl.nixl_agent_config(backends=[]))
        made.create_backend(backend, {"rails": "lo"} if backend == "POLYRAIL" else {})
        return made

    total = size * count * (1 if count == 1 else GAP)
    child = Child(_target, backend, total, size, count)
    me = agent("init")
    memory = pattern(total, 1).copy()
    registered = me.register_memory([(memory.ctypes.data, memory.nbytes, 0, "")], "DRAM")
    metadata, base = child.recv()
    name = add(me, metadata)
    local = me.get_xfer_descs(spread(memory.ctypes.data, size, count), "DRAM")
    remote = me.get_xfer_descs(spread(base, size, count), "DRAM")
    start = time.perf_counter()
    handle = me.initialize_xfer(operation, local, remote, name)
    prepared = time.perf_counter() - start

    def turn():
        if me.transfer(handle) == "PROC":
            while (state := me.check_xfer_state(handle)) == "PROC":
                pass
            assert state == "DONE", state

    until = time.perf_counter() + seconds / 3
    turns = 0
    while time.perf_counter() < until or turns < 3:
        turn()
        turns += 1
    took = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(took) < 3:
        start = time.perf_counter()
        turn()
        took.append(time.perf_counter() - start)
    if operation == "READ":
        memory[:] = 0
        turn()
        same = _sum(memory, size, count) == _sum(pattern(total, 1), size, count)
    else:
        child.send("sum")
        same = child.recv() == _sum(memory, size, count)
    assert same, "bytes differ"
    print(
        json.dumps(
            {
                "backend": backend,
                "size_bytes": size,
                "count": count,
                "gb_per_s": round(size * count * len(took) / sum(took) / 1e9, 3),
                "us_p50": round(statistics.median(took) * 1e6, 1),
                "prepare_ms": round(prepared * 1e3, 3),
                "turns": len(took),
            }
        ),
        flush=True,
    )
    child.kill()
    os._exit(0)


def _sum(memory, size, count):
    import numpy as np

    words = memory.view(np.uint64).reshape(count, -1)[:, : size // 8]
    # By place, so that blocks in one another's place are seen.
    return int((words.sum(axis=1) * np.arange(1, count + 1, dtype=np.uint64)).sum())


def _target(pipe, backend, total, size, count):
    from common import api, np

    nixl = api()
    made = nixl.nixl_agent("target", nixl.nixl_agent_config(backends=[]))
    made.create_backend(backend, {"rails": "lo"} if backend == "POLYRAIL" else {})
    from common import pattern

    memory = pattern(total, 1).copy() if os.environ.get("READS") else np.zeros(total, np.uint8)
    made.register_memory([(memory.ctypes.data, memory.nbytes, 0, "")], "DRAM")
    pipe.send((made.get_agent_metadata(), memory.ctypes.data))
    pipe.recv()
    pipe.send(_sum(memory, size, count))
    pipe.recv()


def run(backend, size, count, args):
    environment = dict(os.environ, UCX_TLS="tcp", UCX_NET_DEVICES="lo", NIXL_LOG_LEVEL="ERROR")
    if args.operation == "READ":
        environment["READS"] = "1"
    words = ["--one", backend, "--size", str(size), "--count", str(count), "--seconds", str(args.seconds)]
    words += ["--operation", args.operation]
    ran = subprocess.run([sys.executable, __file__, *words], env=environment, capture_output=True, text=True, timeout=300)
    lines = [line for line in ran.stdout.splitlines() if line.startswith("{")]
    if not lines:
        sys.exit(f"{backend} failed:\n{ran.stdout}{ran.stderr}")
    return json.loads(lines[-1])


def compare(size, count, cc, args):
    seen = {backend: [] for backend in args.backends}
    for _ in range(args.rounds):
        for backend in args.backends:
            seen[backend].append(run(backend, size, count, args)["gb_per_s"])
    line = {"operation": args.operation, "size_bytes": size, "count": count, "cc": cc}
    for backend, rates in seen.items():
        line[backend] = {"median": statistics.median(rates), "least": min(rates), "most": max(rates)}
    if len(args.backends) == 2:
        first, second = args.backends
        ratio = statistics.median(seen[first]) / statistics.median(seen[second])
        line["ratio"] = round(ratio, 2)
    line["load"] = os.getloadavg()[0]
    print(json.dumps(line), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=64 << 20)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--operation", choices=["WRITE", "READ"], default="WRITE")
    parser.add_argument("--backends", type=lambda text: text.split(","), default=["POLYRAIL", "UCX"])
    parser.add_argument("--cc", type=lambda text: text.split(","), default=[""])
    parser.add_argument("--shapes", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        return one(args.one, args.size, args.count, args.seconds, args.operation)
    before = CONGESTION.read_text().strip()
    shapes = [(args.size, args.count)]
    if args.shapes:
        shapes = [
            (4096 << (2 * power), 1 << (2 * batch))
            for power in range(8)
            for batch in range(6)
            if (4096 << (2 * power)) * (1 << (2 * batch)) <= 512 << 20
        ]
    try:
        for cc in args.cc:
            if cc:
                CONGESTION.write_text(cc)
            for size, count in shapes:
                compare(size, count, cc or before, args)
    finally:
        if args.cc != [""]:
            CONGESTION.write_text(before)


if __name__ == "__main__":
    main()
