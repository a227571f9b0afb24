"""Notifications come in an agent's name from that agent's engine only."""

from common import Child, add, agent, notification, np, register, run

BYTES = 4096


def target(pipe):
    bob = agent("bob")
    memory = np.zeros(BYTES, np.uint8)
    registered = register(bob, memory)
    pipe.send((bob.get_agent_metadata(), bob.get_serialized_descs(registered.trim())))
    while (order := pipe.recv()) != "end":
        kind, what = order
        if kind == "load":
            pipe.send(add(bob, what))
        else:
            # Those that were to be dropped have come before it.
            got = {}
            while what not in sum(got.values(), []):
                for sender, texts in bob.get_new_notifs().items():
                    got.setdefault(sender, []).extend(texts)
            pipe.send(got)


def sender(pipe, name, metadata, remote):
    made = agent(name)
    memory = np.zeros(BYTES, np.uint8)
    registered = register(made, memory)
    bob = add(made, metadata)
    write = made.initialize_xfer("WRITE", registered.trim(), made.deserialize_descs(remote), bob)
    pipe.send(made.get_agent_metadata())
    while (text := pipe.recv()) != "end":
        # It is complete when its notification is there.
        run(made, write, text)
        pipe.send("sent")


def says(child, text):
    child.send(text)
    assert child.recv() == "sent"


def main():
    bob = Child(target)
    metadata, remote = bob.recv()
    names = ["alice", "carol", "alice", "carol"]
    children = [Child(sender, name, metadata, remote) for name in names]
    alice, carol, false_alice, false_carol = children
    of_alice = [child.recv() for child in children][0]

    # Bob has the metadata of alice before anything of her engine has come.
    bob.send(("load", of_alice))
    assert bob.recv() == "alice"
    says(false_alice, b"not alice")
    says(alice, b"alice")
    bob.send(("until", b"alice"))
    assert (got := bob.recv()) == {"alice": [b"alice"]}, got

    # And never that of carol.
    says(carol, b"carol")
    bob.send(("until", b"carol"))
    assert (got := bob.recv()) == {"carol": [b"carol"]}, got
    says(false_carol, b"not carol")
    says(carol, b"carol again")
    bob.send(("until", b"carol again"))
    assert (got := bob.recv()) == {"carol": [b"carol again"]}, got

    for child in [*children, bob]:
        child.send("end")
        child.end()


if __name__ == "__main__":
    main()
