#!/usr/bin/env python3
"""Latency of small all-reduces on two GPUs, over many launches.

Where the threads of a process come to lie decides much of a latency of some ten microseconds, and
that changes from process to process: one launch of each configuration says little. So every
configuration is launched again and again, in turn, and medians over launches are compared. Needs
NVIDIA's driver and NCCL (no PyTorch: a launch takes two seconds), and two GPUs.

  nccl_latency.py --lib libnccl-net-polyrail.so --launches 10 --out latency.json
  nccl_latency.py --lib … --variant 'ring:NCCL_ALGO=Ring'     a configuration beside: polyrail + these
  nccl_latency.py --lib … --pauses 0,50,300,2000,20000         each all-reduce is awaited, then a pause
  nccl_latency.py --lib … --lab NAME --polyrail polyrail       a rank in each of the lab's nodes `a` and `b`, over
                                                               its rails (`sudo polyrail lab up NAME --rails …`)

Without --pauses 20 all-reduces are launched back to back, and a time is a twentieth of theirs. With
--pauses each is launched by itself, and a time is from its launch until the stream is synchronised.
A pause below 1 ms is spent by a loop that reads the clock, a longer one in a sleep.
"""

import argparse
import ctypes
import glob
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time

# All data goes through the network transport.
COMMON = {
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_IB_DISABLE": "1",
    "NCCL_CUMEM_HOST_ENABLE": "0",
}
FLOAT32, SUM, UNIQUE_ID_BYTES = 7, 0, 128
BATCH, BATCHES, WARM_UP = 20, 25, 100
PAUSED_LEAST, PAUSED_MOST, PAUSED_S = 25, 400, 0.4
SLEEPS_FROM_US = 1000
LAUNCH_S = 60


def main():
    options = parse()
    if options.rank is not None:
        return rank(options)
    found = configurations(options)
    cases = [case_of(size, pause) for size in options.sizes for pause in options.pauses or [None]]
    samples = {name: {case: [] for case in cases} for name in found}
    longest = {name: dict.fromkeys(cases, 0.0) for name in found}
    raw, faults = [], []
    started = time.monotonic()
    for launch in range(options.launches):
        for name, env in found.items():
            if time.monotonic() - started > options.budget:
                faults.append(f"launch {launch} of {name}: not begun after {options.budget} s")
                continue
            result = launched(options, env)
            raw.append({"launch": launch, "configuration": name, "env": env, **result})
            if "error" in result:
                faults.append(f"launch {launch} of {name}: {result['error']}")
            for case, times in result.get("us", {}).items():
                samples[name][case].append(statistics.median(times))
                longest[name][case] = max(longest[name][case], *times)
    choices = {name: chosen(options, env) for name, env in found.items()} if options.choices else {}
    with open(options.out, "w") as file:
        json.dump({"arguments": sys.argv[1:], "launches": raw, "choices": choices}, file, indent=1)
    show(samples, longest, choices)
    for fault in faults:
        print(fault)
    return 1 if faults else 0


def case_of(size, pause):
    return f"{size}" if pause is None else f"{size} after {pause} us"


def parse():
    top = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    top.add_argument("--lib", required=True, help="the plugin")
    top.add_argument("--nccl", default=None, help="libnccl.so.2 [found in Python's packages]")
    top.add_argument("--launches", type=int, default=10)
    top.add_argument("--sizes", type=lambda text: [int(size) for size in text.split(",")],
                     default=[8, 1024, 8192], help="bytes [8,1024,8192]")
    top.add_argument("--pauses", type=lambda text: [int(pause) for pause in text.split(",")], default=[],
                     help="us between the end of an all-reduce and the next launch [back to back]")
    top.add_argument("--variant", action="append", default=[], metavar="NAME:K=V,K=V",
                     help="Polyrail with more settings; NCCL_NET=Socket among them: NCCL's own transport")
    top.add_argument("--choices", action="store_true",
                     help="also ask NCCL for the algorithm and protocol that it takes")
    top.add_argument("--lab", help="the name of a lab of two nodes, instead of loopback; needs root")
    top.add_argument("--polyrail", default="polyrail", help="the program, for --lab [polyrail]")
    top.add_argument("--budget", type=float, default=500, help="begin nothing after so many s [500]")
    top.add_argument("--out", default="latency.json")
    top.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    options = top.parse_args()
    options.nccl = options.nccl or find_nccl()
    return options


def find_nccl():
    """The library that PyTorch brought along, else the one that the loader knows."""
    for folder in sys.path:
        for pattern in ["nvidia/nccl/lib/libnccl.so.2", "nvidia/cu*/lib/libnccl.so.2"]:
            for found in sorted(glob.glob(os.path.join(folder or ".", pattern))):
                return found
    return "libnccl.so.2"


def configurations(options):
    socket = {"NCCL_NET_PLUGIN": "none", "NCCL_NET": "Socket"}
    found = {"socket-0x0": socket}
    found["socket-4x4"] = {**socket, "NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "4"}
    polyrail = {"NCCL_NET_PLUGIN": os.path.abspath(options.lib), "NCCL_NET": "Polyrail"}
    found["polyrail"] = polyrail
    for variant in options.variant:
        name, _, pairs = variant.partition(":")
        more = dict(pair.split("=", 1) for pair in pairs.split(",") if pair)
        found[name] = {**(socket if more.get("NCCL_NET") == "Socket" else polyrail), **more}
    return found


def launched(options, env, more=()):
    """Two processes; what rank 0 measured, or why there is nothing."""
    words = [sys.executable, os.path.abspath(__file__), "--lib", options.lib, "--nccl", options.nccl,
             "--sizes", ",".join(str(size) for size in options.sizes)]
    if options.pauses:
        words += ["--pauses", ",".join(str(pause) for pause in options.pauses)]
    inside = [[options.polyrail, "lab", "exec", options.lab, side, "--"] if options.lab else [] for side in "ab"]
    # NCCL takes two nodes of one kernel for one host unless they have names.
    nodes = [{"NCCL_HOSTID": side, "NCCL_SOCKET_IFNAME": "rail", "POLYRAIL_PATH": "tcp"} if options.lab else {} for side in "ab"]
    there, here = os.pipe()
    common = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True,
              "start_new_session": True}
    env = {**os.environ, **COMMON, **env, **dict(more)}
    # The identity goes from rank 0 to rank 1 through a pipe.
    ranks = [subprocess.Popen([*inside[0], *words, "--rank", "0"], stdin=subprocess.DEVNULL, pass_fds=[here],
                              env={**env, **nodes[0], "IDENTITY_FD": str(here)}, **common),
             subprocess.Popen([*inside[1], *words, "--rank", "1"], stdin=there, env={**env, **nodes[1]}, **common)]
    os.close(there)
    os.close(here)
    said = []
    for process in ranks:
        try:
            said.append(process.communicate(timeout=LAUNCH_S)[0])
        except subprocess.TimeoutExpired:
            for other in ranks:
                os.killpg(other.pid, signal.SIGKILL)
            said.append(process.communicate()[0] + f"\nit took more than {LAUNCH_S} s")
    failed = [number for number, process in enumerate(ranks) if process.returncode != 0]
    if failed:
        return {"error": f"rank {failed[0]}: {' / '.join(said[failed[0]].split(chr(10))[-3:])}"}
    lines = [line for line in said[0].splitlines() if line.startswith("{")]
    return {**json.loads(lines[-1]), "said": said[0] if more else ""}


def chosen(options, env):
    """NCCL's own words on each size, of one launch."""
    debug = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "TUNING"}
    lines = launched(options, env, debug.items()).get("said", "").splitlines()
    found = {}
    for line in lines:
        match = re.search(r"AllReduce: (\d+) Bytes -> Algo (\S+) proto (\S+)(.*)", line)
        if match:
            found[match[1]] = " ".join(match.groups()[1:]).strip()
    return found


def rank(options):
    """One of the two processes."""
    number = options.rank
    cuda, nccl = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(options.nccl)

    def call(library, name, *arguments):
        code = getattr(library, name)(*arguments)
        if code != 0:
            sys.exit(f"{name} failed with {code}")

    call(cuda, "cuInit", 0)
    device, context, stream = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
    call(cuda, "cuDeviceGet", ctypes.byref(device), number)
    call(cuda, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call(cuda, "cuCtxSetCurrent", context)
    call(cuda, "cuStreamCreate", ctypes.byref(stream), 1)

    class UniqueId(ctypes.Structure):
        _fields_ = [("bytes", ctypes.c_char * UNIQUE_ID_BYTES)]

    identity = UniqueId()
    if number == 0:
        call(nccl, "ncclGetUniqueId", ctypes.byref(identity))
        os.write(int(os.environ["IDENTITY_FD"]), bytes(identity))
    else:
        told = os.read(0, UNIQUE_ID_BYTES)
        if len(told) != UNIQUE_ID_BYTES:
            sys.exit("rank 0 is gone")
        ctypes.memmove(ctypes.byref(identity), told, UNIQUE_ID_BYTES)
    comm = ctypes.c_void_p()
    call(nccl, "ncclCommInitRank", ctypes.byref(comm), 2, identity, number)

    measured = {}
    for size in options.sizes:
        count = max(1, size // 4)
        ones = (ctypes.c_float * count)(*[1.0 + number] * count)
        source, target = ctypes.c_uint64(), ctypes.c_uint64()
        for place in [source, target]:
            call(cuda, "cuMemAlloc_v2", ctypes.byref(place), ctypes.c_size_t(4 * count))
        call(cuda, "cuMemcpyHtoD_v2", source, ones, ctypes.c_size_t(4 * count))

        def batch(operations):
            for _ in range(operations):
                call(nccl, "ncclAllReduce", source, target, ctypes.c_size_t(count), FLOAT32, SUM,
                     comm, stream)
            call(cuda, "cuStreamSynchronize", stream)

        batch(WARM_UP)
        if not options.pauses:
            measured[case_of(size, None)] = [timed(batch, BATCH) for _ in range(BATCHES)]
        for pause in options.pauses:
            # Both ranks take the same number, which follows from the pause alone.
            turns = max(PAUSED_LEAST, min(PAUSED_MOST, int(PAUSED_S * 1e6 / max(1, pause))))
            times = []
            for _ in range(turns):
                rest(pause)
                times.append(timed(batch, 1))
            measured[case_of(size, pause)] = times
        call(cuda, "cuMemcpyDtoH_v2", ones, target, ctypes.c_size_t(4 * count))
        if any(value != 3.0 for value in ones):
            sys.exit(f"{size} B: a wrong sum, {next(v for v in ones if v != 3.0)} and not 3")
    call(nccl, "ncclCommDestroy", comm)
    print(json.dumps({"us": measured}))
    return 0


def timed(batch, operations):
    begin = time.perf_counter()
    batch(operations)
    return (time.perf_counter() - begin) / operations * 1e6


def rest(pause_us):
    end = time.perf_counter() + pause_us / 1e6
    if pause_us >= SLEEPS_FROM_US:
        time.sleep(pause_us / 1e6)
    while time.perf_counter() < end:
        pass


def show(samples, longest, choices):
    """Medians over launches, the longest time of all, and the ratio to the best of NCCL's own."""
    for case in next(iter(samples.values())):
        medians = {name: statistics.median(times[case]) for name, times in samples.items() if times[case]}
        own = [median for name, median in medians.items() if name.startswith("socket")]
        size, _, after = case.partition(" ")
        print(f"all_reduce {size} B{' ' + after if after else ''}: us, median of launches (least to most)")
        for name, median in medians.items():
            times = samples[name][case]
            ratio = f"{median / min(own):5.2f} x the best socket" if own else ""
            choice = choices.get(name, {}).get(size, "")
            print(f"  {name:20} {median:7.1f} ({min(times):.1f} to {max(times):.1f}), longest {longest[name][case]:.0f}, "
                  f"{len(times)} launches {ratio} {choice}".rstrip())


if __name__ == "__main__":
    sys.exit(main())
