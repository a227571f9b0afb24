"""Two processes: write, read, notifications with and without a transfer, the same request again and again."""

from common import Child, add, agent, notification, np, pattern, register, run

BYTES = 48 << 20


def target(pipe):
    bob = agent("bob")
    memory = np.zeros(BYTES, np.uint8)
    registered = register(bob, memory)
    pipe.send((bob.get_agent_metadata(), bob.get_serialized_descs(registered.trim())))
    for turn in range(4):
        # It is visible only when every byte is in place.
        assert notification(bob, "alice") == [b"written %d" % turn]
        assert (memory == pattern(BYTES, turn)).all(), f"bytes differ after write {turn}"
        pipe.send(turn)
    memory[:] = pattern(BYTES, 77)
    pipe.send("read me")
    assert notification(bob, "alice") == [b"has read"]
    add(bob, pipe.recv())
    bob.send_notif("alice", b"a message alone \0\xff")
    pipe.recv()


def main():
    bob = Child(target)
    alice = agent("alice")
    memory = np.zeros(BYTES, np.uint8)
    registered = register(alice, memory)
    metadata, remote = bob.recv()
    name = add(alice, metadata)
    assert name == "bob", name
    remote = alice.deserialize_descs(remote)
    write = alice.initialize_xfer("WRITE", registered.trim(), remote, name)
    for turn in range(4):
        memory[:] = pattern(BYTES, turn)
        run(alice, write, b"written %d" % turn)
        assert bob.recv() == turn
    alice.release_xfer_handle(write)

    assert bob.recv() == "read me"
    read = alice.initialize_xfer("READ", registered.trim(), remote, name, b"has read")
    run(alice, read, b"has read")
    assert (memory == pattern(BYTES, 77)).all(), "bytes differ after the read"
    duration, margin, method = alice.estimate_xfer_cost(read)
    assert 0 < duration < 60_000_000, duration
    alice.release_xfer_handle(read)

    bob.send(alice.get_agent_metadata())
    assert notification(alice, "bob") == [b"a message alone \0\xff"]
    bob.send("that was all")
    bob.end()
    # A transfer with itself, by the same calls.
    other = np.zeros(BYTES, np.uint8)
    mine = register(alice, other)
    local = alice.initialize_xfer("WRITE", registered.trim(), mine.trim(), "alice", b"to myself")
    run(alice, local, b"to myself")
    assert (other == memory).all(), "bytes differ after the transfer with itself"
    assert notification(alice, "alice") == [b"to myself"]
    alice.deregister_memory(mine)
    alice.deregister_memory(registered)


if __name__ == "__main__":
    main()
