"""Lists of 100,000 descriptors as one request: scattered, adjacent, prepared once and posted again."""

import time

from common import Child, add, agent, descs, notification, np, pattern, register, run

COUNT = 100_000
BLOCK = 256
BYTES = COUNT * BLOCK


def scattered():
    """Blocks in an order without two neighbours."""
    order = (np.arange(COUNT, dtype=np.int64) * 7919) % COUNT
    return [(int(place) * BLOCK, BLOCK) for place in order]


def target(pipe):
    bob = agent("bob")
    memory = np.zeros(BYTES, np.uint8)
    registered = register(bob, memory)
    pipe.send((bob.get_agent_metadata(), bob.get_serialized_descs(registered.trim()), memory.ctypes.data))
    source = np.arange(COUNT)
    for turn in range(3):
        assert notification(bob, "alice") == [b"%d" % turn]
        want = pattern(BYTES, turn).reshape(COUNT, BLOCK)
        got = memory.reshape(COUNT, BLOCK)[(source * 7919) % COUNT]
        assert (got == want).all(), f"blocks differ after list {turn}"
        pipe.send(turn)
    assert notification(bob, "alice") == [b"adjacent"]
    assert (memory == pattern(BYTES, 9)).all(), "bytes differ after the adjacent list"


def main():
    bob = Child(target)
    alice = agent("alice")
    memory = np.zeros(BYTES, np.uint8)
    registered = register(alice, memory)
    metadata, _, base = bob.recv()
    name = add(alice, metadata)
    straight = [(index * BLOCK, BLOCK) for index in range(COUNT)]
    local = descs(alice, memory, straight)
    there = alice.get_xfer_descs([(base + offset, length, 0) for offset, length in scattered()], "DRAM")
    start = time.perf_counter()
    handle = alice.initialize_xfer("WRITE", local, there, name)
    took = time.perf_counter() - start
    for turn in range(3):
        memory[:] = pattern(BYTES, turn)
        run(alice, handle, b"%d" % turn)
        assert bob.recv() == turn
    alice.release_xfer_handle(handle)

    # By lists that were prepared for any choice of their blocks.
    memory[:] = pattern(BYTES, 9)
    mine = alice.prep_xfer_dlist("NIXL_INIT_AGENT", local)
    theirs = alice.prep_xfer_dlist(
        name, alice.get_xfer_descs([(base + offset, length, 0) for offset, length in straight], "DRAM")
    )
    indices = np.arange(COUNT, dtype=np.int32)
    chosen = alice.make_prepped_xfer("WRITE", mine, indices, theirs, indices)
    run(alice, chosen, b"adjacent")
    alice.release_xfer_handle(chosen)
    bob.end()
    print(f"{COUNT} descriptors were prepared in {took * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
