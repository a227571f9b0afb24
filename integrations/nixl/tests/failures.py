"""Agents that die, come back, leave and end their memory: each is an error in time, and nobody's bytes are another's."""

import time

from common import Child, add, agent, np, notification, pattern, register, run, wait_for

BYTES = 128 << 20
DEADLINE_MS = 3000
# The deadline, and what a busy machine may add.
WITHIN_S = DEADLINE_MS / 1e3 + 2


def target(pipe, size):
    bob = agent("bob")
    memory = np.zeros(size, np.uint8)
    registered = register(bob, memory)
    pipe.send((bob.get_agent_metadata(), bob.get_serialized_descs(registered.trim())))
    while True:
        match pipe.recv():
            case "tell when bytes come":
                memory[:] = 0
                pipe.send("ready")
                wait_for("the first bytes", lambda: memory[:: 1 << 20].any())
                pipe.send("bytes came")
            case "sum":
                pipe.send(int(memory.astype(np.uint64).sum()))
            case ("is", seed):
                pipe.send(bool((memory == pattern(size, seed)).all()))
            case "other memory":
                bob.deregister_memory(registered)
                registered = register(bob, memory)
                memory[:] = 5
                pipe.send((bob.get_agent_metadata(), bob.get_serialized_descs(registered.trim())))
            case "leave and load":
                bob.add_remote_agent(pipe.recv())
                bob.send_notif("alice", b"I know you")
                pipe.send("sent")
                bob.remove_remote_agent("alice")
                pipe.send("left")
            case "over":
                return


def fails(alice, handle, name, is_posted=False):
    """Posts a transfer, waits for this exception, and says how long that took. A post may raise it at once."""
    start = time.monotonic()

    def look():
        nonlocal is_posted
        try:
            state = alice.check_xfer_state(handle) if is_posted else alice.transfer(handle)
        except Exception as error:
            assert type(error).__name__ == name, f"{type(error).__name__} instead of {name}"
            return True
        is_posted = True
        assert state == "PROC", f"its state is {state}"
        return False

    wait_for(name, look)
    return time.monotonic() - start


def forget(alice, name):
    """NIXL up to 1.4 forgets an agent by itself when a transfer ends with a disconnect, and 1.5 does not."""
    try:
        alice.remove_remote_agent(name)
    except Exception as error:
        assert type(error).__name__ == "nixlNotFoundError", error


def killed_in_mid_transfer(alice, memory, registered):
    bob = Child(target, BYTES)
    metadata, remote = bob.recv()
    write = alice.initialize_xfer("WRITE", registered.trim(), alice.deserialize_descs(remote), add(alice, metadata))
    memory[:] = pattern(BYTES, 1)
    bob.send("tell when bytes come")
    assert bob.recv() == "ready"
    assert alice.transfer(write) == "PROC"
    assert bob.recv() == "bytes came"
    bob.kill()
    # Whole, it would take far longer than the first of its bytes.
    took = fails(alice, write, "nixlRemoteDisconnectError", is_posted=True)
    assert took < WITHIN_S, f"the end of a killed agent was seen after {took:.1f} s"
    print(f"a killed agent was seen after {took:.2f} s")
    alice.release_xfer_handle(write)
    return metadata, remote


def stale_metadata(alice, registered, metadata, remote, bob):
    forget(alice, "bob")
    add(alice, metadata)
    write = alice.initialize_xfer("WRITE", registered.trim(), alice.deserialize_descs(remote), "bob")
    assert fails(alice, write, "nixlRemoteDisconnectError") < WITHIN_S
    alice.release_xfer_handle(write)
    bob.send(("is", 2))
    assert bob.recv(), "a transfer to an agent that died has changed the memory of its successor"


def main():
    alice = agent("alice", peer_timeout_ms=str(DEADLINE_MS))
    memory = np.zeros(BYTES, np.uint8)
    registered = register(alice, memory)
    metadata, remote = killed_in_mid_transfer(alice, memory, registered)

    # A successor of the same name works by new metadata.
    forget(alice, "bob")
    bob = Child(target, BYTES)
    new_metadata, new_remote = bob.recv()
    add(alice, new_metadata)
    write = alice.initialize_xfer("WRITE", registered.trim(), alice.deserialize_descs(new_remote), "bob")
    memory[:] = pattern(BYTES, 2)
    run(alice, write)
    bob.send(("is", 2))
    assert bob.recv(), "bytes differ at the successor"
    alice.release_xfer_handle(write)
    stale_metadata(alice, registered, metadata, remote, bob)

    # A request that is released while it is under way touches nothing afterwards.
    forget(alice, "bob")
    add(alice, new_metadata)
    write = alice.initialize_xfer("WRITE", registered.trim(), alice.deserialize_descs(new_remote), "bob")
    assert alice.transfer(write) == "PROC"
    alice.release_xfer_handle(write)
    memory[:] = 0
    bob.send("sum")
    before = bob.recv()
    bob.send("sum")
    assert bob.recv() == before, "a released transfer goes on"

    # Memory that was deregistered, and registered again at the same place: the old reference is refused.
    write = alice.initialize_xfer("WRITE", registered.trim(), alice.deserialize_descs(new_remote), "bob")
    bob.send("other memory")
    newer_metadata, newer_remote = bob.recv()
    fails(alice, write, "nixlNotAllowedError")
    alice.release_xfer_handle(write)
    bob.send("sum")
    assert bob.recv() == 5 * BYTES, "a stale reference has changed memory"

    # An agent that has forgotten this one can still be written to.
    alice.remove_remote_agent("bob")
    add(alice, newer_metadata)
    write = alice.initialize_xfer("WRITE", registered.trim(), alice.deserialize_descs(newer_remote), "bob")
    memory[:] = pattern(BYTES, 3)
    run(alice, write)
    bob.send("leave and load")
    bob.send(alice.get_agent_metadata())
    assert bob.recv() == "sent"
    assert notification(alice, "bob") == [b"I know you"]
    assert bob.recv() == "left"
    memory[:] = pattern(BYTES, 4)
    run(alice, write)
    bob.send(("is", 4))
    assert bob.recv(), "bytes differ at an agent that has forgotten this one"
    alice.release_xfer_handle(write)
    bob.send("over")
    bob.end()


if __name__ == "__main__":
    main()
