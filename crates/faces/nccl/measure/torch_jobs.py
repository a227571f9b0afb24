#!/usr/bin/env python3
"""Jobs on the Polyrail plugin: training, coming and going, and a rail that is cut.

  torch_jobs.py train  --lib LIB   loss curves over NET/Socket and over Polyrail are the same
  torch_jobs.py cycles --lib LIB   100 process groups one after the other leave nothing behind
  torch_jobs.py cut    --lib LIB   one of two rails loses its address in mid-all-reduce, and gets it
                                   back (needs root: the rails are two addresses of `lo`)

Each needs PyTorch with NCCL and 2 GPUs, prints what it saw, and exits with 1 if it is not as said.
"""

import argparse
import ctypes
import faulthandler
import os
import socket
import struct
import sys
import tempfile
import threading
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from torch_nccl import COMMON, configurations, free_port

M_ARENA_MAX = -8
RAILS = ["10.77.0.1", "10.77.1.1"]


def join(rank, world, env, rendezvous):
    faulthandler.enable()
    os.environ.update(COMMON | env | {"LOCAL_WORLD_SIZE": str(world)})
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=rendezvous, rank=rank, world_size=world,
                            device_id=torch.device("cuda", rank))


def launch(target, world, env, *args, limit=120):
    """Runs `target(rank, world, env, rendezvous, queue, *args)` on every rank; what they put, by rank."""
    context = mp.get_context("fork")
    queue, rendezvous = context.Queue(), f"tcp://127.0.0.1:{free_port()}"
    ranks = [context.Process(target=target, args=(rank, world, env, rendezvous, queue, *args)) for rank in range(world)]
    for process in ranks:
        process.start()
    results, deadline = {}, time.monotonic() + limit
    while len(results) < world and time.monotonic() < deadline:
        if not queue.empty():
            rank, result = queue.get()
            results[rank] = result
        elif any(p.exitcode not in (None, 0) for p in ranks):
            break
        time.sleep(0.01)
    # A process that ended without a result failed by itself; stop the others.
    codes = [process.exitcode for process in ranks]
    for process in ranks:
        process.join(5)
        process.kill()
    if len(results) < world:
        missing = ", ".join(f"rank {rank} (exit code {codes[rank]})" for rank in range(world) if rank not in results)
        sys.exit(f"FAILED: no result of {missing}")
    return results


def train(rank, world, env, rendezvous, queue, steps):
    join(rank, world, env, rendezvous)
    torch.manual_seed(42)
    torch.use_deterministic_algorithms(True)
    model = torch.nn.Sequential(
        torch.nn.Linear(512, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 4096), torch.nn.GELU(),
        torch.nn.Linear(4096, 10)).cuda()
    model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    random = torch.Generator().manual_seed(rank)
    data = torch.randn(64 * 16, 512, generator=random)
    labels = data.abs().argmax(dim=1) % 10
    losses, start = [], time.perf_counter()
    for step in range(steps):
        at = step % 16 * 64
        loss = torch.nn.functional.cross_entropy(model(data[at:at + 64].cuda()), labels[at:at + 64].cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / world)
    queue.put((rank, (losses, time.perf_counter() - start)))
    dist.destroy_process_group()


def run_train(known):
    curves = {}
    for name in ["socket-4x4", "polyrail"]:
        results = launch(train, 2, known[name][0], 200)
        curves[name], seconds = results[0]
        print(f"{name:12} loss {curves[name][0]:.6f} -> {curves[name][-1]:.6f}, 200 steps in {seconds:.2f} s")
    worst = max(abs(a - b) for a, b in zip(*curves.values()))
    print(f"largest difference of the two curves: {worst:.3g}")
    return worst == 0.0 and curves["polyrail"][-1] < curves["polyrail"][0]


def cycles(rank, world, env, _rendezvous, queue, count, folder):
    # Threads that come and go fill glibc's arenas one after the other, 8 for each CPU, which looks like
    # a leak until all are in use. With few of them a leak shows at once.
    ctypes.CDLL(None).mallopt(M_ARENA_MAX, 4)
    seen = []
    for number in range(count):
        # A file each: a port that was just used makes whoever comes early wait for most of a second.
        join(rank, world, env, f"file://{folder}/{number}")
        value = torch.full((1 << 20,), float(rank + 1), device="cuda")
        dist.all_reduce(value)
        assert value.eq(world * (world + 1) / 2).all(), f"cycle {number}: wrong sum"
        torch.cuda.synchronize()
        dist.destroy_process_group()
        status = dict(line.split(":", 1) for line in open("/proc/self/status"))
        seen.append((len(os.listdir("/proc/self/fd")), int(status["Threads"]), int(status["VmRSS"].split()[0])))
    queue.put((rank, seen))


def run_cycles(known):
    per_cycle = {}
    for name, count in [("socket-4x4", 30), ("polyrail", 100)]:
        began = time.monotonic()
        # NCCL 2.28.9 forgets the name of a plugin when it unloads it, and this keeps it loaded.
        env = {**known[name][0], "NCCL_NET_PLUGIN_REF_COUNT": "1"}
        with tempfile.TemporaryDirectory() as folder:
            seen = launch(cycles, 2, env, count, folder, limit=300)[0]
        # The first cycles leave things behind once; that is not a leak.
        (fds, threads, rss), (last_fds, last_threads, last_rss) = seen[9], seen[-1]
        print(f"{name:12} {count} cycles in {time.monotonic() - began:.0f} s; after 10 and {count}: descriptors "
              f"{fds} and {last_fds}, threads {threads} and {last_threads}, memory {rss >> 10} and {last_rss >> 10} MiB",
              flush=True)
        per_cycle[name] = (last_rss - rss) / (count - 10)
    # NCCL and PyTorch themselves grow a little with each cycle.
    return last_fds <= fds and last_threads <= threads and per_cycle["polyrail"] <= per_cycle["socket-4x4"] + 100


def change_address(address, add):
    """Gives `lo` an address, or takes it, by rtnetlink."""
    packed = socket.inet_aton(address)
    attributes = b"".join(struct.pack("HH", 8, kind) + packed for kind in (1, 2))
    body = struct.pack("BBBBi", socket.AF_INET, 32, 0, 0, 1) + attributes
    kind, flags = (20, 0x605) if add else (21, 0x5)
    message = struct.pack("IHHII", 16 + len(body), kind, flags, 1, 0) + body
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as netlink:
        netlink.send(message)
        error = -struct.unpack("i", netlink.recv(4096)[16:20])[0]
    if error and not (add and error == 17):
        sys.exit(f"FAILED: address {address}: {os.strerror(error)}")


def cut(rank, world, env, rendezvous, queue, seconds):
    join(rank, world, env, rendezvous)
    value = torch.ones(16 << 20, device="cuda")
    rates, start = [], time.perf_counter()
    while True:
        began = time.perf_counter()
        value.fill_(rank + 1)
        dist.all_reduce(value)
        stop = torch.tensor([began - start > seconds], device="cuda").int()
        dist.broadcast(stop, 0)
        wrong = int((value != world * (world + 1) / 2).sum())
        rates.append((began - start, time.perf_counter() - began, wrong))
        if stop.item():
            break
    queue.put((rank, rates))
    dist.destroy_process_group()


def run_cut(known):
    for address in RAILS:
        change_address(address, True)
    env = known["polyrail"][0] | {"POLYRAIL_RAILS": ",".join(RAILS)}
    times = {"cut": 3.0, "back": 6.0}
    begun = threading.Timer(4.0 + times["cut"], change_address, (RAILS[1], False))
    healed = threading.Timer(4.0 + times["back"], change_address, (RAILS[1], True))
    begun.start(), healed.start()
    rates = launch(cut, 2, env, 10.0)[0]
    begun.join(), healed.join()
    for address in RAILS:
        change_address(address, False)
    wrong, longest = sum(r[2] for r in rates), max(r[1] for r in rates)
    for second in range(int(rates[-1][0]) + 1):
        here = [r[1] for r in rates if second <= r[0] < second + 1]
        if here:
            print(f"second {second:2}: {len(here):4} all-reduces of 64 MiB, the longest {max(here) * 1e3:7.1f} ms")
    print(f"{len(rates)} all-reduces, {wrong} wrong elements; the longest took {longest:.2f} s")
    return wrong == 0 and longest > 0.2


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", choices=["train", "cycles", "cut"])
    parser.add_argument("--lib", required=True)
    args = parser.parse_args()
    job = {"train": run_train, "cycles": run_cycles, "cut": run_cut}[args.job]
    if not job(configurations(os.path.abspath(args.lib))):
        sys.exit(f"FAILED: {args.job}")
    print(f"ok: {args.job}")


if __name__ == "__main__":
    main()
