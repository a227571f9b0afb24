#!/usr/bin/env python3
"""What NCCL's thread does in a net plugin, from the files that libnccl-net-calls.so writes.

  make -C crates/faces/nccl/harness
  crates/faces/nccl/measure/nccl_latency.py --lib LIB --launches 1 --sizes 8 --variant \\
      calls:NCCL_NET_PLUGIN=$PWD/crates/faces/nccl/harness/build/libnccl-net-calls.so,CALLS_LIBRARY=LIB,CALLS_OUT=/tmp/calls
  crates/faces/nccl/measure/net_calls.py /tmp/calls.*

Each file is one process; times are in us. With the files of two processes of one host whose messages
take turns, as those of a small all-reduce do, also: how long a message with data takes from isend to
the test that finds it, and how long until the other side answers or begins anew.
"""

import argparse
import collections
import statistics

Call = collections.namedtuple("Call", "at end name connection bytes")


def main():
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("files", nargs="+", metavar="FILE")
    options = top.parse_args()
    processes = [read(path) for path in options.files]
    for path, calls in zip(options.files, processes):
        print(path)
        show_calls(calls)
    if len(processes) == 2:
        show_turns(*processes)


def read(path):
    """The calls of the second half but for the end: connecting and warming up is over."""
    with open(path) as file:
        rows = [line.split() for line in file]
    calls = [Call(int(at) / 1e3, (int(at) + int(took)) / 1e3, name, connection, int(size))
             for at, took, name, connection, size in rows]
    kept = calls[len(calls) // 2:len(calls) * 9 // 10]
    if not kept:
        raise SystemExit(f"{path}: {len(calls)} calls are too few")
    return kept


def show_calls(calls):
    span = calls[-1].end - calls[0].at
    for name in ["isend", "sending", "sent", "irecv", "receiving", "received"]:
        times = [call.end - call.at for call in calls if call.name == name]
        if times:
            print(f"  {name:10} {len(times):7} calls  {spread(times)}  {sum(times) / span:5.1%} of the time")


def show_turns(one, other):
    """Messages without bytes are no part of a turn."""
    sends = [[call for call in calls if call.name == "isend" and call.bytes] for calls in (one, other)]
    receipts = [[call for call in calls if call.name == "received" and call.bytes] for calls in (one, other)]
    begin = max(calls[0].at for calls in (one, other))
    end = min(calls[-1].end for calls in (one, other))
    events = sorted(
        [(call.at, "sends", side) for side in (0, 1) for call in sends[side] if begin < call.at < end]
        + [(call.end, "has", side) for side in (0, 1) for call in receipts[side] if begin < call.end < end])
    travel, thought = {0: [], 1: []}, {0: [], 1: []}
    for (at, what, side), (then, next_what, next_side) in zip(events, events[1:]):
        if (what, next_what) == ("sends", "has") and side != next_side:
            travel[side].append(then - at)
        elif (what, next_what) == ("has", "sends") and side == next_side:
            thought[side].append(then - at)
    if not all([*travel.values(), *thought.values()]):
        print("the messages of the two take no turns")
        return
    print("turns")
    for side in (0, 1):
        print(f"  isend in process {side} until seen in the other  {spread(travel[side])}")
        print(f"  seen in process {side} until its next isend      {spread(thought[side])}")


def spread(times):
    tenths = statistics.quantiles(times, n=10) if len(times) > 1 else times * 9
    return (f"p10 {tenths[0]:7.2f}  median {statistics.median(times):7.2f}  "
            f"mean {statistics.mean(times):7.2f}  p90 {tenths[8]:7.2f}")


if __name__ == "__main__":
    main()
