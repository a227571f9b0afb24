#!/usr/bin/env python3
"""PyTorch collectives over NCCL's socket transport and over the Polyrail plugin, in turn.

Every configuration gets processes of its own, one for each GPU of this machine, with peer-to-peer
and shared memory switched off, so that all data goes through the network transport. Each
collective is first checked element by element, then timed: the clock runs from before the first
call until the last result is there, on the slowest rank. Needs PyTorch with NCCL and 2 GPUs.

  torch_nccl.py --lib libnccl-net-polyrail.so --rounds 3 --out results.json
"""

import argparse
import json
import os
import platform
import resource
import socket
import statistics
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from nccl_latency import COMMON

KIB, MIB = 1 << 10, 1 << 20
CONGESTION = "/proc/sys/net/ipv4/tcp_congestion_control"


def configurations(lib):
    """Name to environment and congestion control (None: the system's)."""
    found = {}
    for threads, sockets in [(0, 0), (4, 4), (8, 8)]:
        env = {"NCCL_NET_PLUGIN": "none", "NCCL_NET": "Socket"}
        if threads:
            env |= {"NCCL_SOCKET_NTHREADS": str(threads), "NCCL_NSOCKS_PERTHREAD": str(sockets)}
        found[f"socket-{threads}x{sockets}"] = (env, None)
        found[f"socket-{threads}x{sockets}-cubic"] = (env, "cubic")
    found["polyrail"] = ({"NCCL_NET_PLUGIN": lib, "NCCL_NET": "Polyrail"}, None)
    return found


def iterations(size):
    for limit, count in [(64 * KIB, 200), (MIB, 100), (16 * MIB, 20), (64 * MIB, 10), (256 * MIB, 5)]:
        if size <= limit:
            return count
    return 3


def make(name, size, rank, world):
    """The collective as a function, what to check after one call, and its bus factor."""
    device = torch.device("cuda", rank)
    count = max(world, size // 4 // world * world)
    pattern = (torch.arange(count, device=device) % 97).float()

    def of(source):
        return pattern + source

    part = slice(rank * (count // world), (rank + 1) * (count // world))
    if name == "all_reduce":
        buffer = of(rank)
        expected = pattern * world + sum(range(world))
        return (lambda: dist.all_reduce(buffer)), (lambda: (buffer, expected)), 2 * (world - 1) / world
    if name == "all_gather":
        out, mine = torch.zeros(count, device=device), of(rank)[part].clone()
        expected = torch.cat([of(r)[r * (count // world):(r + 1) * (count // world)] for r in range(world)])
        return (lambda: dist.all_gather_into_tensor(out, mine)), (lambda: (out, expected)), (world - 1) / world
    if name == "reduce_scatter":
        source, out = of(rank), torch.zeros(count // world, device=device)
        expected = (pattern * world + sum(range(world)))[part]
        return (lambda: dist.reduce_scatter_tensor(out, source)), (lambda: (out, expected)), (world - 1) / world
    if name == "alltoall":
        source, out = of(rank), torch.zeros(count, device=device)
        expected = torch.cat([of(r)[part] for r in range(world)])
        return (lambda: dist.all_to_all_single(out, source)), (lambda: (out, expected)), (world - 1) / world
    if name == "broadcast":
        buffer = of(rank)
        return (lambda: dist.broadcast(buffer, 0)), (lambda: (buffer, of(0))), 1
    if name == "send_recv":
        # One way, from each even rank to the next.
        buffer = of(rank)
        if rank % 2 == 0:
            return (lambda: dist.send(buffer, rank + 1)), (lambda: (buffer, of(rank))), 1
        return (lambda: dist.recv(buffer, rank - 1)), (lambda: (buffer, of(rank - 1))), 1
    raise SystemExit(f"no collective {name}")


def finish():
    done = torch.cuda.Event(blocking=True)
    done.record()
    done.synchronize()


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def run_rank(rank, world, env, meets, work, seconds, queue):
    os.environ.update(COMMON | {"LOCAL_WORLD_SIZE": str(world)} | env)
    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl", init_method=meets, rank=rank, world_size=world,
        device_id=torch.device("cuda", rank))
    for name, size in work:
        call, check, factor = make(name, size, rank, world)
        call()
        finish()
        got, expected = check()
        wrong = int((got != expected).sum())
        for _ in range(2):
            call()
        finish()
        count = iterations(size)
        walls, cpu = [], 0.0
        deadline = time.monotonic() + seconds
        while True:
            dist.barrier()
            finish()
            cpu_before, start = cpu_seconds(), time.perf_counter()
            for _ in range(count):
                call()
            finish()
            walls.append((time.perf_counter() - start) / count)
            cpu += (cpu_seconds() - cpu_before) / count
            # All ranks stop after the same round.
            more = torch.tensor([time.monotonic() < deadline and len(walls) < 20], device="cuda").int()
            dist.broadcast(more, 0)
            if not more.item():
                break
        queue.put((rank, name, size, factor, wrong, statistics.median(walls), cpu / len(walls)))
        del call, check
        torch.cuda.empty_cache()
    dist.destroy_process_group()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run(world, env, congestion, work, seconds, limit):
    """Results by (collective, size); an error text if a rank failed or hangs."""
    context = mp.get_context("fork")
    queue, port = context.Queue(), free_port()
    before = open(CONGESTION).read().strip()
    if congestion and congestion != before:
        open(CONGESTION, "w").write(congestion)
    ranks = [
        context.Process(target=run_rank, args=(rank, world, env, f"tcp://127.0.0.1:{port}", work, seconds, queue))
        for rank in range(world)
    ]
    rows, deadline = [], time.monotonic() + limit
    try:
        for process in ranks:
            process.start()
        while any(process.is_alive() for process in ranks) or not queue.empty():
            while not queue.empty():
                rows.append(queue.get())
            failed = [p.exitcode for p in ranks if p.exitcode not in (None, 0)]
            if failed or time.monotonic() > deadline:
                return rows, f"exit codes {failed}" if failed else f"not over after {limit} s"
            time.sleep(0.02)
    finally:
        for process in ranks:
            process.kill()
            process.join()
        if congestion and congestion != before:
            open(CONGESTION, "w").write(before)
    return rows, None


def summarise(rows, world):
    results = {}
    for name, size in dict.fromkeys((row[1], row[2]) for row in rows):
        of = [row for row in rows if row[1:3] == (name, size)]
        wall = max(row[5] for row in of)
        results[f"{name} {size}"] = {
            "us": wall * 1e6,
            "busbw": size * of[0][3] / wall / 1e9,
            "cpu_s_per_gb": sum(row[6] for row in of) / (size / 1e9),
            "wrong": sum(row[4] for row in of),
            "ranks": len(of),
        }
    return results


def parse_size(text):
    for unit, factor in [("GiB", 1 << 30), ("MiB", MIB), ("KiB", KIB), ("B", 1)]:
        if text.endswith(unit):
            return int(text[: -len(unit)]) * factor
    return int(text)


def show(size):
    for unit, factor in [("GiB", 1 << 30), ("MiB", MIB), ("KiB", KIB)]:
        if size >= factor:
            return f"{size // factor} {unit}"
    return f"{size} B"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lib", required=True, help="the plugin, as a path")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.5, help="least time per collective and size")
    parser.add_argument("--limit", type=float, default=120, help="most time per configuration and round")
    parser.add_argument("--configs", default="socket-0x0,socket-4x4,socket-8x8,polyrail")
    parser.add_argument("--variant", action="append", default=[], metavar="NAME:KEY=VALUE,...",
                        help="Polyrail with more environment")
    parser.add_argument("--work", default="all_reduce:64MiB,256MiB,1GiB send_recv:256MiB")
    parser.add_argument("--env", default="", help="KEY=VALUE,... for all configurations")
    parser.add_argument("--out", help="JSON with every round")
    args = parser.parse_args()
    work = []
    for item in args.work.split():
        name, sizes = item.split(":")
        work += [(name, parse_size(size)) for size in sizes.split(",")]
    known = configurations(os.path.abspath(args.lib))
    chosen = {name: known[name] for name in args.configs.split(",") if name}
    for variant in args.variant:
        name, pairs = variant.split(":", 1)
        env, congestion = known["polyrail"]
        extra = dict(pair.split("=", 1) for pair in pairs.split(",") if pair)
        chosen[name] = (env | extra, congestion)
    shared = dict(pair.split("=", 1) for pair in args.env.split(",") if pair)
    rounds = []
    for number in range(args.rounds):
        # In turn, and every other round backwards, so that no configuration is always last.
        order = list(chosen) if number % 2 == 0 else list(reversed(chosen))
        this = {}
        for name in order:
            env, congestion = chosen[name]
            began = time.monotonic()
            rows, error = run(args.ranks, shared | env, congestion, work, args.seconds, args.limit)
            this[name] = {"results": summarise(rows, args.ranks), "error": error}
            note = f": {error}" if error else ""
            print(f"round {number + 1}, {name}: {time.monotonic() - began:.0f} s{note}", flush=True)
        rounds.append(this)
    report = {
        "ranks": args.ranks, "configurations": {n: c[0] for n, c in chosen.items()},
        "common": COMMON | shared, "cpus": os.cpu_count(), "kernel": platform.release(),
        "gpu": torch.cuda.get_device_name(0), "torch": torch.__version__,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        "congestion": open(CONGESTION).read().strip(), "rounds": rounds,
    }
    if args.out:
        with open(args.out, "w") as out:
            json.dump(report, out, indent=1)
    table(report, work, chosen)


def table(report, work, chosen):
    print(f"\n{report['ranks']} ranks, {report['gpu']}, {report['cpus']} CPUs, NCCL {report['nccl']}, "
          f"{report['congestion']}; medians of {len(report['rounds'])} rounds")
    baseline = [name for name in chosen if name.startswith("socket")]
    for name, size in work:
        key = f"{name} {size}"
        print(f"\n{name} {show(size)}")
        medians = {}
        for config in chosen:
            found = [r[config]["results"].get(key) for r in report["rounds"]]
            found = [result for result in found if result]
            if not found:
                print(f"  {config:24} no result")
                continue
            us = [result["us"] for result in found]
            medians[config] = statistics.median(us)
            bus = statistics.median(result["busbw"] for result in found)
            cpu = statistics.median(result["cpu_s_per_gb"] for result in found)
            wrong = sum(result["wrong"] for result in found)
            spread = (max(us) - min(us)) / 2 / statistics.median(us) * 100
            best = min((medians[b] for b in baseline if b in medians), default=None)
            ratio = f"{best / medians[config]:5.2f} x best socket" if best and config not in baseline else ""
            print(f"  {config:24} {medians[config]:11.1f} us ±{spread:3.0f} %  {bus:7.2f} GB/s  "
                  f"{cpu:6.2f} CPU s/GB  {wrong} wrong  {ratio}")


if __name__ == "__main__":
    main()
