"""Bad input: each is an exception of NIXL with a text of ours on standard error, and changes nothing."""

import os
import sys
import tempfile

from common import Child, add, agent, np, notification, pattern, raises, register, run

BYTES = 1 << 20


def target(pipe):
    bob = agent("bob")
    memory = np.zeros(BYTES, np.uint8)
    registered = register(bob, memory)
    pipe.send((bob.get_agent_metadata(), bob.get_serialized_descs(registered.trim())))
    assert notification(bob, "alice") == [b"at last"]
    assert (memory == pattern(BYTES, 1)).all()


class Says:
    """What is written to standard error meanwhile has this text in it."""

    def __init__(self, *texts):
        self.texts = texts

    def __enter__(self):
        sys.stderr.flush()
        self.file = tempfile.TemporaryFile()
        self.kept = os.dup(2)
        os.dup2(self.file.fileno(), 2)

    def __exit__(self, kind, *_):
        sys.stderr.flush()
        os.dup2(self.kept, 2)
        os.close(self.kept)
        self.file.seek(0)
        said = self.file.read().decode(errors="replace")
        if kind is None:
            for text in self.texts:
                assert text in said, f"{text!r} is not in what was said:\n{said}"


def settings():
    with Says("no_such_setting"):
        raises("nixlBackendError", lambda: agent("a", no_such_setting="1"))
    with Says("peer_timeout_ms", "100 to 3600000"):
        raises("nixlBackendError", lambda: agent("a", peer_timeout_ms="5"))
    with Says("rails", "nosuchnic"):
        raises("nixlBackendError", lambda: agent("a", rails="nosuchnic"))
    with Says("/no/such/file"):
        raises("nixlBackendError", lambda: agent("a", config_file="/no/such/file"))


def memory_kinds(alice, memory):
    # Nothing of another kind gets as far as this backend.
    raises("nixlNotFoundError", lambda: register(alice, memory, "BLOCK"))
    with Says("VRAM memory at"):
        raises("nixlBackendError", lambda: register(alice, memory, "VRAM"))


def metadata(alice, blob):
    """Metadata with any byte changed is refused, or names another agent, and the process goes on."""
    place = blob.index(b"PLRC1")
    with Says("does not begin with PLRC1"):
        raises("nixlMismatchError", lambda: alice.add_remote_agent(blob[:place] + b"X" + blob[place + 1 :]))
    place = blob.index(b"PLRK1")
    with Says("does not begin with PLRK1"):
        raises("nixlMismatchError", lambda: alice.add_remote_agent(blob[:place] + b"X" + blob[place + 1 :]))
    for changed in range(blob.index(b"PLRK1") + 5, blob.index(b"PLRK1") + 13):
        try:
            alice.add_remote_agent(blob[:changed] + bytes([blob[changed] ^ 0x5A]) + blob[changed + 1 :])
        except Exception as error:
            assert type(error).__name__ in ("nixlMismatchError", "nixlNotAllowedError"), error
    try:
        alice.remove_remote_agent("bob")
    except Exception as error:
        assert type(error).__name__ == "nixlNotFoundError", error


def main():
    settings()
    alice = agent("alice")
    memory = np.zeros(BYTES, np.uint8)
    memory_kinds(alice, memory)
    registered = register(alice, memory)
    query = alice.query_memory([(memory.ctypes.data + 5, 9, 0, "")], "POLYRAIL", "DRAM")
    assert query == [{"base": str(memory.ctypes.data), "length": str(BYTES)}], query
    query = alice.query_memory([(memory.ctypes.data + BYTES - 4, 5, 0, "")], "POLYRAIL", "DRAM")
    assert query == [None], query

    bob = Child(target)
    blob, remote = bob.recv()
    metadata(alice, blob)
    name = add(alice, blob)
    remote = alice.deserialize_descs(remote)
    local = registered.trim()
    other = np.zeros(BYTES, np.uint8)
    stranger = alice.get_xfer_descs([(other.ctypes.data, BYTES, 0)], "DRAM")
    raises("nixlNotFoundError", lambda: alice.initialize_xfer("WRITE", stranger, remote, name))
    raises("nixlNotFoundError", lambda: alice.initialize_xfer("WRITE", local, remote, "carol"))
    raises("nixlNotFoundError", lambda: alice.send_notif("carol", b"x"))
    write = alice.initialize_xfer("WRITE", local, remote, name)
    raises("nixlNotFoundError", lambda: alice.estimate_xfer_cost(write))
    with Says("notification", "65536"):
        raises("nixlBackendError", lambda: alice.transfer(write, b"x" * 70_000))
    with Says("notification", "65536"):
        raises("nixlBackendError", lambda: alice.send_notif(name, b"x" * 70_000))
    memory[:] = pattern(BYTES, 1)
    run(alice, write, b"at last")
    bob.end()


if __name__ == "__main__":
    main()
