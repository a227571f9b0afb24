"""A KV cache over POLYRAIL and over UCX, in turn, in the two ways of serving engines, verified. Prints JSON lines and a table.

read: as vLLM, the decoder reads the blocks of a request by number, from lists prepared for all blocks of all layers.
write: as SGLang, the prefiller writes the blocks of a request layer by layer. Both with a notification for each request
or layer. Making the requests counts, as serving engines make each anew.

python kv.py --rounds 3 --set path=device      blocks of 16, 64 and 256 KiB, over the rails
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time

from measure import HERE, agent

sys.path.insert(0, str(HERE.parent / "tests"))

LAYERS = 32
LAYER_BYTES = 8 << 20
REQUEST_BYTES = 64 << 20
REQUESTS = 8
WAYS = ("read", "write")


def pattern(layer):
    """Every word tells its place and its layer."""
    import numpy as np

    return (np.arange(LAYER_BYTES // 8, dtype=np.uint64) | np.uint64(layer << 40)).view(np.uint8)


def cache(made, is_filled):
    import numpy as np

    layers = [pattern(layer) if is_filled else np.zeros(LAYER_BYTES, np.uint8) for layer in range(LAYERS)]
    made.register_memory([(layer.ctypes.data, layer.nbytes, 0, "") for layer in layers], "DRAM")
    return layers, [layer.ctypes.data for layer in layers]


def places(bases, size, blocks):
    return [(base + block * size, size, 0) for base in bases for block in blocks]


def plan(size):
    """For each request the numbers of its blocks there and here."""
    order, blocks = random.Random(1), range(LAYER_BYTES // size)
    count = REQUEST_BYTES // LAYERS // size
    return [(order.sample(blocks, count), order.sample(blocks, count)) for _ in range(REQUESTS)]


def check(layers, size, there, here):
    for number, layer in enumerate(layers):
        assert (layer.reshape(-1, size)[here] == pattern(number).reshape(-1, size)[there]).all(), f"layer {number} differs"


def complete(made, handles):
    from common import wait_for

    moving = [handle for handle in handles if made.transfer(handle) == "PROC"]

    def look():
        for handle in list(moving):
            state = made.check_xfer_state(handle)
            assert state in ("PROC", "DONE"), state
            if state == "DONE":
                moving.remove(handle)
        return not moving

    wait_for("the end of a request", look)
    for handle in handles:
        made.release_xfer_handle(handle)


def hear(made, sender, messages):
    """Waits for messages, which come in any order."""
    from common import notification

    heard = set()
    while len(heard) < len(messages):
        heard.update(notification(made, sender))
    assert heard == messages, heard


def prefill(pipe, backend, size, settings):
    from common import add

    me = agent("prefill", backend, settings)
    layers, mine = cache(me, True)
    pipe.send((me.get_agent_metadata(), mine))
    metadata, theirs = pipe.recv()
    decode = add(me, metadata)
    for number in range(REQUESTS):
        hear(me, "decode", {b"read %d" % number})
    pipe.recv()
    took = []
    for number, (there, here) in enumerate(plan(size)):
        start = time.perf_counter()
        handles = []
        for layer in range(LAYERS):
            local = me.get_xfer_descs(places(mine[layer : layer + 1], size, there), "DRAM")
            remote = me.get_xfer_descs(places(theirs[layer : layer + 1], size, here), "DRAM")
            handles.append(me.initialize_xfer("WRITE", local, remote, decode, b"%d_%d" % (number, layer)))
        complete(me, handles)
        took.append(time.perf_counter() - start)
        assert pipe.recv() == "checked"
    pipe.send(took)
    pipe.recv()
    # The memory has to stay until the end.
    del layers


def one(backend, size, settings):
    """Runs in a process of its own; prints what it measured."""
    from common import Child, add

    child = Child(prefill, backend, size, settings)
    me = agent("decode", backend, settings)
    layers, mine = cache(me, False)
    metadata, theirs = child.recv()
    name = add(me, metadata)
    child.send((me.get_agent_metadata(), mine))
    every = range(LAYER_BYTES // size)
    local = me.prep_xfer_dlist("NIXL_INIT_AGENT", places(mine, size, every), "DRAM")
    remote = me.prep_xfer_dlist(name, places(theirs, size, every), "DRAM")
    took = {"read": [], "write": []}
    for number, (there, here) in enumerate(plan(size)):
        indices = [[layer * len(every) + block for layer in range(LAYERS) for block in side] for side in (here, there)]
        start = time.perf_counter()
        complete(me, [me.make_prepped_xfer("READ", local, indices[0], remote, indices[1], b"read %d" % number)])
        took["read"].append(time.perf_counter() - start)
        check(layers, size, there, here)
    for layer in layers:
        layer[:] = 0
    child.send("write")
    for number, (there, here) in enumerate(plan(size)):
        hear(me, "prefill", {b"%d_%d" % (number, layer) for layer in range(LAYERS)})
        check(layers, size, there, here)
        child.send("checked")
    took["write"] = child.recv()
    # The first request of each way connects.
    rates = {way: round(REQUEST_BYTES / statistics.median(took[way][1:]) / 1e9, 3) for way in WAYS}
    print(json.dumps(rates), flush=True)
    child.kill()
    os._exit(0)


def run(backend, size, settings):
    environment = dict(os.environ, UCX_TLS=os.environ.get("UCX_TLS", "tcp"), UCX_NET_DEVICES="lo", NIXL_LOG_LEVEL="ERROR")
    words = ["--one", backend, "--sizes", str(size), *(word for setting in settings for word in ("--set", setting))]
    ran = subprocess.run([sys.executable, __file__, *words], env=environment, capture_output=True, text=True, timeout=300)
    lines = [line for line in ran.stdout.splitlines() if line.startswith("{")]
    if not lines:
        sys.exit(f"{backend} failed:\n{ran.stdout}{ran.stderr}")
    return json.loads(lines[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=lambda text: [int(size) for size in text.split(",")], default=[16 << 10, 64 << 10, 256 << 10])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--backends", type=lambda text: text.split(","), default=["POLYRAIL", "UCX"])
    parser.add_argument("--set", action="append", default=[], help="a setting of POLYRAIL, NAME=VALUE")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        return one(args.one, args.sizes[0], dict(setting.split("=", 1) for setting in args.set))
    table = [f"| request of {REQUEST_BYTES >> 20} MiB over {LAYERS} layers | {' | '.join(args.backends)} |"]
    for size in args.sizes:
        seen = {backend: [] for backend in args.backends}
        for _ in range(args.rounds):
            for backend in args.backends:
                seen[backend].append(run(backend, size, args.set))
        for way in WAYS:
            line = {"way": way, "block_bytes": size, "load": os.getloadavg()[0]}
            for backend, rates in seen.items():
                rates = [rate[way] for rate in rates]
                line[backend] = {"median": statistics.median(rates), "least": min(rates), "most": max(rates)}
            print(json.dumps(line), flush=True)
            cells = [f"{it['median']:.2f} ({it['least']:.2f} to {it['most']:.2f}) GB/s" for it in (line[one] for one in args.backends)]
            table.append(f"| {way}, blocks of {size >> 10} KiB | {' | '.join(cells)} |")
    print("\n".join(table))


if __name__ == "__main__":
    main()
