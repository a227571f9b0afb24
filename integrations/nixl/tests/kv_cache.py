"""A KV cache moves from who has computed it to who decodes, in the two ways that serving engines use.

vLLM: the decoder prepares lists of all blocks of all layers once, and reads those of a request by their numbers.
SGLang: the prefiller writes runs of blocks by layer. Both with a notification for each request."""

import random

from common import Child, add, agent, np, notification, run

LAYERS = 8
BLOCKS = 96
REQUESTS = 6
BLOCKS_PER_REQUEST = 12
SIZES = [16 << 10, 64 << 10, 256 << 10]


def content(block_bytes, layer, block):
    """Every block of every layer differs, and so does every word of it."""
    words = np.arange(block_bytes // 8, dtype=np.uint64)
    return (words + np.uint64((layer << 40) | (block << 24))).view(np.uint8)


def places(caches, block_bytes, numbers):
    return [(base + number * block_bytes, block_bytes, 0) for base in caches for number in numbers]


def prefill(pipe, block_bytes):
    me = agent("prefill")
    caches = [np.concatenate([content(block_bytes, layer, n) for n in range(BLOCKS)]) for layer in range(LAYERS)]
    me.register_memory([(cache.ctypes.data, cache.nbytes, 0, "") for cache in caches], "DRAM")
    pipe.send((me.get_agent_metadata(), [cache.ctypes.data for cache in caches]))
    heard = set()
    while len(heard) < REQUESTS:
        heard.update(notification(me, "decode"))
    assert heard == {b"request %d" % number for number in range(REQUESTS)}, heard

    metadata, there, plan = pipe.recv()
    decode = add(me, metadata)
    for number, (mine, theirs) in enumerate(plan):
        local = me.get_xfer_descs(places([cache.ctypes.data for cache in caches], block_bytes, mine), "DRAM")
        remote = me.get_xfer_descs(places(there, block_bytes, theirs), "DRAM")
        write = me.initialize_xfer("WRITE", local, remote, decode, b"%d_kv_0_1" % number)
        run(me, write, b"%d_kv_0_1" % number)
        me.release_xfer_handle(write)
    assert pipe.recv() == "checked"


def check(caches, block_bytes, plan):
    for mine, theirs in plan:
        for layer, cache in enumerate(caches):
            for there, here in zip(mine, theirs):
                got = cache[here * block_bytes : (here + 1) * block_bytes]
                assert (got == content(block_bytes, layer, there)).all(), f"layer {layer}, block {here} differs"


def pairs(seed):
    """For each request the numbers of its blocks there and here, which no two requests share here."""
    order = random.Random(seed)
    free = order.sample(range(BLOCKS), REQUESTS * BLOCKS_PER_REQUEST)
    return [
        (order.sample(range(BLOCKS), BLOCKS_PER_REQUEST), free[n * BLOCKS_PER_REQUEST :][:BLOCKS_PER_REQUEST])
        for n in range(REQUESTS)
    ]


def decode(block_bytes):
    other = Child(prefill, block_bytes)
    me = agent("decode")
    caches = [np.zeros(BLOCKS * block_bytes, np.uint8) for _ in range(LAYERS)]
    registered = me.register_memory([(cache.ctypes.data, cache.nbytes, 0, "") for cache in caches], "DRAM")
    metadata, there = other.recv()
    name = add(me, metadata)
    here = [cache.ctypes.data for cache in caches]

    every = range(BLOCKS)
    mine = me.prep_xfer_dlist("NIXL_INIT_AGENT", places(here, block_bytes, every), "DRAM")
    theirs = me.prep_xfer_dlist(name, places(there, block_bytes, every), "DRAM")
    plan = pairs(1)
    handles = []
    for number, (remote, local) in enumerate(plan):
        indices = [[layer * BLOCKS + block for layer in range(LAYERS) for block in side] for side in (local, remote)]
        told = b"request %d" % number
        read = me.make_prepped_xfer("READ", mine, indices[0], theirs, indices[1], told)
        assert me.transfer(read) in ("PROC", "DONE")
        handles.append(read)
    # All at a time, looked at in turn, as a scheduler does between its steps.
    while handles:
        done = [handle for handle in handles if me.check_xfer_state(handle) == "DONE"]
        handles = [handle for handle in handles if handle not in done]
        for handle in done:
            me.release_xfer_handle(handle)
    check(caches, block_bytes, plan)

    plan = pairs(2)
    for cache in caches:
        cache[:] = 0
    other.send((me.get_agent_metadata(), here, plan))
    heard = set()
    while len(heard) < REQUESTS:
        heard.update(notification(me, "prefill"))
    check(caches, block_bytes, plan)
    other.send("checked")
    other.end()
    me.deregister_memory(registered)


def main():
    for block_bytes in SIZES:
        decode(block_bytes)


if __name__ == "__main__":
    main()
