#!/usr/bin/env python3
"""Times NIXL writing host memory of one process into another's, over UCX on TCP loopback.

Run by figures.py with the Python of the environment that holds NIXL:
    nixl_write.py SIZE_BYTES SECONDS
Prints one JSON object. The target compares every byte at the end.
"""

import json
import os
import sys
import time
from multiprocessing import Pipe, Process

# NIXL refuses `tcp` alone where it sees a GPU; memory of the host goes by TCP with either.
os.environ.setdefault("UCX_TLS", "tcp,cuda_copy" if os.path.exists("/dev/nvidiactl") else "tcp")
os.environ.setdefault("UCX_NET_DEVICES", "lo")
os.environ.setdefault("NIXL_LOG_LEVEL", "ERROR")

import numpy
from nixl_cu12._api import nixl_agent, nixl_agent_config

PORTS = {"source": 25655, "target": 25656}
WARM_UP = 3


def agent(name):
    # A progress thread, and listening for the metadata of the other agent.
    return nixl_agent(name, nixl_agent_config(True, True, PORTS[name], backends=["UCX"]))


def register(owner, buffer):
    return owner.register_memory([(buffer.ctypes.data, buffer.nbytes, 0, "")], "DRAM")


def pattern(size):
    """Bytes that depend on their position, so that a misplaced one is seen."""
    words = numpy.arange(size // 8 + 1, dtype=numpy.uint64) * numpy.uint64(0x9E3779B97F4A7C15)
    return words.view(numpy.uint8)[:size].copy()


def serve(pipe, size):
    target = agent("target")
    buffer = numpy.zeros(size, dtype=numpy.uint8)
    memory = register(target, buffer)
    pipe.send((target.get_agent_metadata(), target.get_serialized_descs(memory.trim())))
    pipe.recv()
    pipe.send(bool(numpy.array_equal(buffer, pattern(size))))
    pipe.recv()


def main(size, seconds):
    ours, theirs = Pipe()
    server = Process(target=serve, args=(theirs, size), daemon=True)
    server.start()
    source = agent("source")
    buffer = pattern(size)
    memory = register(source, buffer)
    metadata, descriptions = ours.recv()
    name = source.add_remote_agent(metadata)
    remote = source.deserialize_descs(descriptions)
    handle = source.initialize_xfer("WRITE", memory.trim(), remote, name, b"done")

    def write():
        source.transfer(handle)
        while True:
            state = source.check_xfer_state(handle)
            if state == "DONE":
                return
            if state == "ERR":
                sys.exit("NIXL: the transfer failed")

    for _ in range(WARM_UP):
        write()
    count, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        write()
        count += 1
    ours.send("check")
    if not ours.recv():
        sys.exit("NIXL: wrong data arrived")
    ours.send("bye")
    print(json.dumps({"transfers": count, "gb_per_s": count * size / elapsed / 1e9}), flush=True)
    server.join(5)
    server.kill()
    # Tearing the agents down crashes some versions; everything is measured by now.
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
