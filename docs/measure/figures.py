#!/usr/bin/env python3
"""Measures the figures of docs/performance.md that need more than one command.

    docs/measure/figures.py [--polyrail PROGRAM] [--rounds N] FIGURE ... [-- BENCH OPTIONS]

Everything is measured in turn, round after round, so that a machine that drifts does not bend the
ratio, which is the median of the ratios within a round. Prints one JSON object; progress goes to
standard error. What stands after `--` is handed to every `polyrail bench`.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
MIB = 1 << 20
CONGESTION = pathlib.Path("/proc/sys/net/ipv4/tcp_congestion_control")


def main():
    arguments, extra = split(sys.argv[1:])
    options = parser().parse_args(arguments)
    options.extra = extra
    print(json.dumps(options.figure(options), indent=2))


def split(arguments):
    if "--" not in arguments:
        return arguments, []
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


def parser():
    top = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    top.add_argument("--polyrail", default="target/release/polyrail", help="the program")
    top.add_argument("--rounds", type=int, default=5, help="alternating rounds")
    figures = top.add_subparsers(required=True, metavar="FIGURE")

    def figure(function, name):
        sub = figures.add_parser(name, help=function.__doc__.splitlines()[0])
        sub.set_defaults(figure=function)
        return sub

    nixl = figure(against_nixl, "nixl")
    nixl.add_argument("peers", help="virtual environment with nixl-cu12, libucx-cu12, numpy")
    nixl.add_argument("--size", type=int, default=64 * MIB)
    nixl.add_argument("--cc", help="the system's congestion control during the run (root)")
    against_ucx = [
        (against_ucx_latency, "ucx-latency"),
        (against_ucx_rate, "ucx-rate"),
        (against_ucx_host_latency, "ucx-host-latency"),
        (against_ucx_host_rate, "ucx-host-rate"),
    ]
    for function, name in against_ucx:
        figure(function, name).add_argument("peers", help="virtual environment with libucx-cu12")
    mooncake = figure(against_mooncake, "mooncake")
    mooncake.add_argument("peers", help="folder with mooncake, as docs/performance.md makes it")
    mooncake.add_argument("--block", type=int, default=64 << 10, help="bytes of a block")
    mooncake.add_argument("--batch", type=int, default=128, help="blocks of a request")
    mooncake.add_argument("--threads", type=int, default=1, help="threads of Mooncake's bench")
    figure(segments, "segments")
    figure(channels, "channels").add_argument("--rails", default="127.0.0.1")
    copy = figure(file, "file")
    copy.add_argument("folder", type=pathlib.Path, help="a folder in memory with twice SIZE, such as /dev/shm")
    copy.add_argument("--size", type=int, default=8 << 30, help="bytes of the file")
    copy.add_argument("--example", default="target/release/examples/file", help="the program")
    figure(cut, "cut").add_argument("--rates", default="4x1gbit", help="the lab's rails")
    return top


# What each figure is.


def against_nixl(options):
    """Writes of 64 MiB against NIXL over UCX on TCP."""
    python = f"{options.peers}/bin/python"

    def nixl():
        command = [python, str(HERE / "nixl_write.py"), str(options.size), "2"]
        return json.loads(run(command).splitlines()[-1])["gb_per_s"]

    def polyrail():
        return bench(options, "--sizes", str(options.size), "--depth", "1")["gb_per_s"]

    with congestion(options.cc):
        rounds = alternate(options.rounds, polyrail=polyrail, nixl=nixl)
    return summary(rounds, "polyrail", "nixl", system_congestion=options.cc or system_congestion())


def against_ucx_latency(options):
    """One-way time of 8 bytes against UCX's tag_lat over TCP."""

    def polyrail():
        result = bench(options, "--sizes", "8", "--latency", "--rails", "127.0.0.1")
        return result["latency_us"]["p50"]

    def ucx():
        # The third column of the last line is the median one-way time in microseconds.
        return float(perftest(options.peers, "tag_lat", 50_000)[2])

    return summary(alternate(options.rounds, polyrail=polyrail, ucx=ucx), "polyrail", "ucx")


def against_ucx_rate(options):
    """Writes of 8 bytes, 64 outstanding, one thread, against UCX's tag_bw, per second."""

    def polyrail():
        return bench(options, "--sizes", "8", "--depth", "64")["transfers_per_s"]

    def ucx():
        return float(perftest(options.peers, "tag_bw", 500_000)[-1])

    return summary(alternate(options.rounds, polyrail=polyrail, ucx=ucx), "polyrail", "ucx")


def against_ucx_host_latency(options):
    """One-way time of 8 bytes within the host against UCX's tag_lat by shared memory."""

    def polyrail():
        what = ["--sizes", "8", "--latency", "--preset", "latency", "--set", "path=auto"]
        return bench(options, *what)["latency_us"]["p50"]

    def ucx():
        # Both ends poll and never sleep: beside other programs each answer may take a turn of theirs.
        return float(perftest(options.peers, "tag_lat", 50_000, tls=SHARED_MEMORY)[2])

    return summary(alternate(options.rounds, polyrail=polyrail, ucx=ucx), "polyrail", "ucx")


def against_ucx_host_rate(options):
    """Writes of 256 MiB within the host by one copy against UCX's ucp_put_bw by shared memory."""
    size = 256 * MIB

    def polyrail():
        what = ["--sizes", str(size), "--depth", "4", "--set", "path=auto"]
        return bench(options, *what)["gb_per_s"]

    def ucx():
        # The second column from the right but one is the average of MiB per second.
        words = perftest(options.peers, "ucp_put_bw", 40, size=size, tls=SHARED_MEMORY)
        return float(words[5]) * MIB / 1e9

    return summary(alternate(options.rounds, polyrail=polyrail, ucx=ucx), "polyrail", "ucx")


def against_mooncake(options):
    """Writes of blocks in batches against the bench of Mooncake's transfer engine over TCP."""
    size = options.block * options.batch

    def polyrail():
        what = ["--sizes", str(size), "--segments", str(options.batch), "--depth", "4"]
        return bench(options, *what)["gb_per_s"]

    def mooncake():
        return mooncake_bench(options)

    rounds = alternate(options.rounds, polyrail=polyrail, mooncake=mooncake)
    return summary(rounds, "polyrail", "mooncake", system_congestion=system_congestion())


def segments(options):
    """16,384 scattered segments of 16 KiB in one request against one write of 256 MiB."""

    def scattered():
        return bench(options, "--sizes", "256MiB", "--segments", "16384")["gb_per_s"]

    def whole():
        return bench(options, "--sizes", "256MiB")["gb_per_s"]

    rounds = alternate(options.rounds, scattered=scattered, whole=whole)
    return summary(rounds, "scattered", "whole")


def channels(options):
    """1, 2, 4 and 8 channels on one rail, each against the best smaller count."""

    def measure(count):
        rail = ["--rails", options.rails]
        return bench(options, "--sizes", "64MiB", "--set", f"channels={count}", *rail)["gb_per_s"]

    counts = [1, 2, 4, 8]
    named = {str(count): lambda count=count: measure(count) for count in counts}
    rounds = alternate(options.rounds, **named)
    medians = {count: statistics.median(rounds[str(count)]) for count in counts}
    ratios = {}
    for count in counts[1:]:
        best = max(counts[: counts.index(count)], key=medians.get)
        pairs = zip(rounds[str(count)], rounds[str(best)])
        ratios[count] = statistics.median(mine / other for mine, other in pairs)
    return {"samples_gb_per_s": rounds, "over_best_smaller": ratios}


def file(options):
    """A copy by the example `file` against reads of its blocks by bench: 16 MiB, 8 outstanding."""
    rails = ",".join(f"127.0.0.{number}" for number in range(1, 5))
    environment = {**os.environ, "POLYRAIL_RAILS": rails}
    source, copy = options.folder / "file-source", options.folder / "file-copy"

    def example():
        with contextlib.ExitStack() as ends:
            server = start([options.example, "serve", str(source)], ends, env=environment)
            line = next(line for line in server.stdout if " get " in line)
            address, invitation = line.split(" get ")[1].split()[:2]
            said = run([options.example, "get", address, invitation, str(copy)], env=environment)
        if run(["sha256sum", copy]).split()[0] != checksum:
            sys.exit("the copy has other bytes")
        copy.unlink()
        return float(re.search(r"at most ([0-9.]+) GB/s", said)[1])

    def reads():
        return bench(options, "--op", "read", "--sizes", "16MiB", "--depth", "8", "--rails", rails)["gb_per_s"]

    try:
        with source.open("wb") as out:
            for _ in range(options.size // (16 * MIB)):
                out.write(os.urandom(16 * MIB))
        checksum = run(["sha256sum", source]).split()[0]
        rounds = alternate(options.rounds, example=example, bench=reads)
    finally:
        source.unlink(missing_ok=True)
        copy.unlink(missing_ok=True)
    return summary(rounds, "example", "bench")


def cut(options):
    """A rail is cut in the middle of a run and comes back; what the others carry meanwhile."""
    runs = [cut_once(options) for _ in range(options.rounds)]
    return {
        "share_of_remaining_rails_after_1_s": statistics.median(run["share"] for run in runs),
        "rejoined": all(run["rejoined"] for run in runs),
        "verified": all(run["verified"] for run in runs),
        "runs": runs,
    }


def cut_once(options):
    program, name = options.polyrail, f"cut-{time.time_ns() % 10**9}"
    run([program, "lab", "up", name, "--rails", options.rates])
    inside = {side: [program, "lab", "exec", name, side, "--", program, "bench"] for side in "ab"}
    with contextlib.ExitStack() as ends:
        ends.callback(run, [program, "lab", "down", name])
        server = start([*inside["b"], "--listen", "--rails", "rail"], ends)
        address = server.stdout.readline().split()[-1]
        # Many short samples, each with its time, show what the rate was when.
        what = ["--sizes", "16MiB", "--time", "12s", "--rounds", "100", "--json", "-"]
        where = ["--connect", address, "--rails", "rail"]
        client = start([*inside["a"], *where, *what, *options.extra], ends)
        time.sleep(CUT_AFTER_S)
        cut_ms = time.time() * 1e3
        run([program, "lab", "set", name, CUT_RAIL, "--link", "down"])
        time.sleep(CUT_FOR_S)
        up_ms = time.time() * 1e3
        run([program, "lab", "set", name, CUT_RAIL, "--link", "up"])
        report = json.loads(client.communicate(timeout=300)[0])
    return judge_cut(report["results"][0], rates(options.rates), cut_ms, up_ms)


CUT_RAIL = "rail1"
CUT_AFTER_S, CUT_FOR_S, REJOIN_S = 6, 6, 3


def judge_cut(result, gbit, cut_ms, up_ms):
    """The share is of what the remaining rails carried before the cut."""

    def median_rate(begin_ms, end_ms):
        inside = [
            sample["bytes"] / 1e9 / sample["seconds"]
            for sample in result["samples"]
            if begin_ms <= sample["started_unix_ms"]
            and sample["started_unix_ms"] + sample["seconds"] * 1e3 <= end_ms
        ]
        return statistics.median(inside) if inside else None

    before = median_rate(0, cut_ms)
    during = median_rate(cut_ms + 1000, up_ms)
    after = median_rate(up_ms + REJOIN_S * 1e3, float("inf"))
    if None in (before, during, after):
        sys.exit("too few samples: the run was over too soon or never began; give more --time")
    remaining = before * (sum(gbit) - gbit[int(CUT_RAIL[-1])]) / sum(gbit)
    return {
        "before_gb_per_s": before,
        "during_gb_per_s": during,
        "after_gb_per_s": after,
        "share": during / remaining,
        "rejoined": after > 0.9 * before,
        "verified": result["verified"],
    }


def rates(text):
    """Reads the rates of a lab, in Gbit/s."""
    units = {"gbit": 1.0, "mbit": 1e-3, "kbit": 1e-6}
    all_rates = []
    for item in text.split(","):
        count, _, rate = item.rpartition("x")
        unit = next(unit for unit in units if rate.endswith(unit))
        all_rates += [float(rate.removesuffix(unit)) * units[unit]] * int(count or 1)
    return all_rates


# How it is taken.


def bench(options, *arguments):
    """The only result of one `polyrail bench`."""
    command = [options.polyrail, "bench", *arguments, "--json", "-", *options.extra]
    return json.loads(run(command))["results"][0]


# What UCX has for two processes of one host: rings in shared memory, and copies by the kernel.
SHARED_MEMORY = "posix,sysv,cma,self"


def perftest(peers, test, iterations, size=8, tls="tcp"):
    """The words of the last line of UCX's own benchmark, within this host."""
    libraries = next(pathlib.Path(peers).glob("lib/python3*/site-packages/libucx"))
    environment = {
        "LD_LIBRARY_PATH": str(libraries / "lib"),
        "UCX_TLS": tls,
        "PATH": "/usr/bin:/bin",
    }
    if tls == "tcp":
        environment["UCX_NET_DEVICES"] = "lo"
    command = [str(libraries / "bin/ucx_perftest"), "-p", "25657"]
    with contextlib.ExitStack() as ends:
        start(command, ends, env=environment)
        time.sleep(0.5)
        client = ["127.0.0.1", "-t", test, "-s", str(size)]
        client += ["-n", str(iterations), "-w", str(min(1000, iterations)), "-f"]
        lines = run([*command, *client], env=environment).splitlines()
    finals = [line for line in lines if line.startswith("Final:")] or lines
    return finals[-1].split()


def mooncake_bench(options):
    """GB/s of Mooncake's `transfer_engine_bench`."""
    root = pathlib.Path(options.peers) / "mooncake"
    libraries = next(root.glob("lib/python3*/site-packages/mooncake"))
    environment = {"LD_LIBRARY_PATH": str(libraries), "PATH": "/usr/bin:/bin"}
    program = [str(root / "bin/transfer_engine_bench"), "--metadata_server=P2PHANDSHAKE"]
    program += ["--protocol=tcp", f"--buffer_size={256 * MIB}"]
    with contextlib.ExitStack() as ends:
        target = [*program, "--mode=target", "--local_server_name=127.0.0.1:17700"]
        server = start(target, ends, env=environment, stderr=subprocess.STDOUT)
        address = None
        for line in server.stdout:
            heard = re.search(r"listening on (127\.0\.0\.1:\d+)", line)
            address = heard[1] if heard else address
            if "numa node num" in line:
                break
        if not address:
            sys.exit("mooncake: the target ended before it said where it listens")
        what = [f"--block_size={options.block}", f"--batch_size={options.batch}"]
        what += [f"--threads={options.threads}", f"--segment_id={address}"]
        what += ["--operation=write", "--duration=3"]
        client = [*program, "--mode=initiator", "--local_server_name=127.0.0.1:17701", *what]
        done = subprocess.run(client, env=environment, capture_output=True, text=True, timeout=60)
    found = re.search(r"throughput ([0-9.]+) GB/s", done.stdout + done.stderr)
    if not found:
        sys.exit(f"mooncake: no throughput in what it printed:\n{done.stdout}{done.stderr}")
    return float(found[1])


def alternate(rounds, **measurements):
    """Takes each measurement once per round, in turn."""
    samples = {name: [] for name in measurements}
    for index in range(rounds):
        for name, measure in measurements.items():
            samples[name].append(measure())
            print(f"round {index + 1}: {name} {samples[name][-1]:.4g}", file=sys.stderr)
    return samples


def summary(samples, ours, theirs, **more):
    pairs = zip(samples[ours], samples[theirs])
    return {
        **{f"{name}_median": statistics.median(values) for name, values in samples.items()},
        "ratio": statistics.median(mine / other for mine, other in pairs),
        "samples": samples,
        **more,
    }


def system_congestion():
    return CONGESTION.read_text().strip()


@contextlib.contextmanager
def congestion(name):
    """Sets the system's congestion control, which needs root, and puts it back."""
    before = system_congestion()
    if name:
        CONGESTION.write_text(name)
    try:
        yield
    finally:
        if name:
            CONGESTION.write_text(before)


def start(command, ends, **options):
    """Starts a process that is ended with `ends`."""
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    process = subprocess.Popen(command, **{**piped, **options})
    ends.callback(lambda: (process.kill(), process.wait()))
    return process


def run(command, **options):
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    done = subprocess.run(command, **piped, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
