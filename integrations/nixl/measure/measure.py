"""NIXL over POLYRAIL and over UCX, in turn: writes from one process to another, verified. Prints JSON lines.

python measure.py --size 67108864 --count 1 --rounds 7          one descriptor of 64 MiB
python measure.py --size 16384 --count 4096 --cc bbr,cubic      a list, under both (needs root for --cc)
python measure.py --shapes                                      block 4 KiB to 64 MiB by batch 1 to 1,024
python measure.py --gpus 0,1 --set path=tcp --size 1073741824   from one GPU to another, over the rails (needs PyTorch)
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


class Memory:
    """Bytes of the host, or of a GPU."""

    def __init__(self, content, gpu):
        self.kind = "DRAM" if gpu is None else "VRAM"
        self.device = gpu or 0
        if gpu is None:
            self.bytes = content.copy()
            self.address = self.bytes.ctypes.data
            return
        import torch

        self.bytes = torch.from_numpy(content.copy()).to(f"cuda:{gpu}")
        self.address = self.bytes.data_ptr()

    def register(self, agent):
        return agent.register_memory([(self.address, self.bytes.nbytes, self.device, "")], self.kind)

    def where(self):
        return self.kind, self.device, self.address

    def content(self):
        return self.bytes if self.kind == "DRAM" else self.bytes.cpu().numpy()


def descs(agent, where, size, count):
    kind, device, base = where
    stride = size if count == 1 else size * GAP
    return agent.get_xfer_descs([(base + index * stride, size, device) for index in range(count)], kind)


def agent(name, backend, settings):
    from common import api

    nixl = api()
    made = nixl.nixl_agent(name, nixl.nixl_agent_config(backends=[]))
    made.create_backend(backend, {"rails": "lo", **settings} if backend == "POLYRAIL" else {})
    return made


def one(backend, size, count, seconds, operation, gpus, settings):
    """Runs in a process of its own; prints what it measured."""
    sys.path.insert(0, str(HERE.parent / "tests"))
    from common import Child, add, pattern

    total = size * count * (1 if count == 1 else GAP)
    child = Child(_target, backend, total, size, count, gpus[1], settings)
    me = agent("init", backend, settings)
    memory = Memory(pattern(total, 1), gpus[0])
    registered = memory.register(me)
    metadata, there = child.recv(120)
    name = add(me, metadata)
    local = descs(me, memory.where(), size, count)
    remote = descs(me, there, size, count)
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
        memory.bytes[:] = 0
        turn()
        same = _sum(memory.content(), size, count) == _sum(pattern(total, 1), size, count)
    else:
        child.send("sum")
        same = child.recv(120) == _sum(memory.content(), size, count)
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


def _target(pipe, backend, total, size, count, gpu, settings):
    from common import np, pattern

    made = agent("target", backend, settings)
    memory = Memory(pattern(total, 1) if os.environ.get("READS") else np.zeros(total, np.uint8), gpu)
    memory.register(made)
    pipe.send((made.get_agent_metadata(), memory.where()))
    pipe.recv()
    pipe.send(_sum(memory.content(), size, count))
    pipe.recv()


def run(backend, size, count, args):
    transports = "tcp,cuda_copy" if args.gpus else "tcp"
    environment = dict(os.environ, UCX_TLS=os.environ.get("UCX_TLS", transports), UCX_NET_DEVICES="lo", NIXL_LOG_LEVEL="ERROR")
    if args.operation == "READ":
        environment["READS"] = "1"
    words = ["--one", backend, "--size", str(size), "--count", str(count), "--seconds", str(args.seconds)]
    words += ["--operation", args.operation]
    words += ["--gpus", args.gpus] if args.gpus else []
    words += [word for setting in args.set for word in ("--set", setting)]
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
    line = {"operation": args.operation, "size_bytes": size, "count": count, "cc": cc, "gpus": args.gpus}
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
    parser.add_argument("--gpus", help="numbers of the source's and the target's GPU, such as 0,1; default: host memory")
    parser.add_argument("--set", action="append", default=[], help="a setting of POLYRAIL, NAME=VALUE")
    parser.add_argument("--shapes", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        gpus = [int(number) for number in args.gpus.split(",")] if args.gpus else [None, None]
        settings = dict(setting.split("=", 1) for setting in args.set)
        return one(args.one, args.size, args.count, args.seconds, args.operation, gpus, settings)
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
