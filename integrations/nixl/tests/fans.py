"""One agent writes to four, and four to one, at the same time; every byte is checked."""

from common import Child, add, agent, descs, notification, np, pattern, register, run, wait_for

PEERS = 4
BYTES = 8 << 20


def receiver(pipe, number):
    me = agent(f"receiver {number}")
    memory = np.zeros(BYTES, np.uint8)
    registered = register(me, memory)
    pipe.send((me.get_agent_metadata(), me.get_serialized_descs(registered.trim())))
    assert notification(me, "one") == [b"for %d" % number]
    assert (memory == pattern(BYTES, number)).all(), f"bytes of receiver {number} differ"
    # The way back: each to its own part of the one.
    metadata, remote = pipe.recv()
    one = add(me, metadata)
    remote = me.deserialize_descs(remote)
    memory[:] = pattern(BYTES, 100 + number)
    back = me.initialize_xfer("WRITE", registered.trim(), remote, one)
    run(me, back, b"from %d" % number)
    pipe.recv()


def main():
    peers = [Child(receiver, number) for number in range(PEERS)]
    one = agent("one")
    source = np.concatenate([pattern(BYTES, number) for number in range(PEERS)])
    registered = register(one, source)
    handles = []
    for number, peer in enumerate(peers):
        metadata, remote = peer.recv()
        name = add(one, metadata)
        mine = descs(one, source, [(number * BYTES, BYTES)])
        handles.append(one.initialize_xfer("WRITE", mine, one.deserialize_descs(remote), name))
    for number, handle in enumerate(handles):
        assert one.transfer(handle, b"for %d" % number) in ("PROC", "DONE")
    for handle in handles:
        wait_for("the end of a transfer", lambda: one.check_xfer_state(handle) == "DONE")

    sink = np.zeros(PEERS * BYTES, np.uint8)
    parts = register(one, sink)
    for number, peer in enumerate(peers):
        part = descs(one, sink, [(number * BYTES, BYTES)])
        peer.send((one.get_agent_metadata(), one.get_serialized_descs(part)))
    heard = {}

    def all_told():
        for name, messages in one.get_new_notifs().items():
            heard.setdefault(name, []).extend(messages)
        return len(heard) == PEERS

    wait_for("a notification of each", all_told)
    for number, peer in enumerate(peers):
        assert heard[f"receiver {number}"] == [b"from %d" % number], heard
        got = sink[number * BYTES : (number + 1) * BYTES]
        assert (got == pattern(BYTES, 100 + number)).all(), f"bytes from receiver {number} differ"
        peer.send("that was all")
        peer.end()
    one.deregister_memory(parts)
    one.deregister_memory(registered)


if __name__ == "__main__":
    main()
