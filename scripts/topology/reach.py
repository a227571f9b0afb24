"""Asks the kernel by plain TCP which NIC of a node reaches which address of another, and how fast they are together."""

import errno
import select
import socket
import threading
import time

PORT = 7399
PATIENCE_S = 1.2


def usable(nic):
    """The addresses of a NIC, without their prefixes."""
    return [] if nic.down else [address.split("/")[0] for address in nic.addresses]


def family(address):
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def listeners(network, node):
    """One for each family, on every address of the node."""
    found = []
    with network.inside(f"n{node}"):
        for kind, anywhere in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
            listener = socket.socket(kind, socket.SOCK_STREAM)
            if kind == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((anywhere, PORT))
            listener.listen(256)
            found.append(listener)
    return found


def start(network, nic, own, target):
    """A connection on its way from a NIC's own address, bound to its device; `None` if the kernel refuses at once."""
    with network.inside(f"n{nic.node}"):
        connecting = socket.socket(family(own), socket.SOCK_STREAM)
        connecting.setblocking(False)
        try:
            connecting.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, nic.device.encode())
            connecting.bind((own, 0))
            code = connecting.connect_ex((target, PORT))
        except OSError:
            code = errno.EHOSTUNREACH
        if code in (0, errno.EINPROGRESS):
            return connecting
        connecting.close()
        return None


def reached(network, a, b):
    """Pairs (i, j) of a NIC of node a and one of node b, with the addresses by which a's reaches b's."""
    nics_a, nics_b = network.topology.nics[a], network.topology.nics[b]
    waiting = {}
    ears = listeners(network, b)
    for i, near in enumerate(nics_a):
        for j, far in enumerate(nics_b):
            for own in usable(near):
                for target in usable(far):
                    if family(own) == family(target):
                        connecting = start(network, near, own, target)
                        if connecting:
                            waiting[connecting] = (i, j, own, target)
    found, deadline = {}, time.monotonic() + PATIENCE_S
    while waiting and time.monotonic() < deadline:
        _, ready, _ = select.select([], list(waiting), [], max(0, deadline - time.monotonic()))
        for connecting in ready:
            i, j, own, target = waiting.pop(connecting)
            if connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                # IPv4 where both do, as `auto` takes.
                if (i, j) not in found or ":" not in own:
                    found[i, j] = (own, target)
            connecting.close()
    for left in [*waiting, *ears]:
        left.close()
    return found


def matching(pairs):
    """A largest set of pairs in which each NIC is used once."""
    edges, of_b = {}, {}
    for i, j in sorted(pairs):
        edges.setdefault(i, []).append(j)

    def place(i, seen):
        for j in edges[i]:
            if j not in seen:
                seen.add(j)
                if j not in of_b or place(of_b[j], seen):
                    of_b[j] = i
                    return True
        return False

    for i in edges:
        place(i, set())
    return sorted((i, j) for j, i in of_b.items())


def plain_rate(network, a, b, ways, seconds):
    """Mbit/s of payload that plain connections carry together, one for each way, from a to b."""
    ears = listeners(network, b)
    by_family = {ear.family: ear for ear in ears}
    senders, receivers = [], []
    try:
        for i, own, target in ways:
            nic = network.topology.nics[a][i]
            connecting = start(network, nic, own, target)
            if connecting is None or not select.select([], [connecting], [], PATIENCE_S)[1]:
                return None
            ear = by_family[family(target)]
            if not select.select([ear], [], [], PATIENCE_S)[0]:
                return None
            receivers.append(ear.accept()[0])
            connecting.setblocking(True)
            senders.append(connecting)
        ends, counts = threading.Event(), [0] * len(receivers)
        threads = [threading.Thread(target=pump, args=(sender, ends)) for sender in senders]
        threads += [
            threading.Thread(target=drain, args=(receiver, ends, counts, at))
            for at, receiver in enumerate(receivers)
        ]
        for thread in threads:
            thread.start()
        time.sleep(0.25)
        begun, before = time.monotonic(), sum(counts)
        time.sleep(seconds)
        rate = (sum(counts) - before) * 8 / 1e6 / (time.monotonic() - begun)
        ends.set()
        for sender in senders:
            sender.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
        return rate
    except OSError:
        return None
    finally:
        for left in [*ears, *senders, *receivers]:
            left.close()


def pump(sender, ends):
    block = bytes(256 * 1024)
    try:
        while not ends.is_set():
            sender.sendall(block)
    except OSError:
        pass


def drain(receiver, ends, counts, at):
    space = bytearray(256 * 1024)
    receiver.settimeout(0.3)
    while not ends.is_set():
        try:
            got = receiver.recv_into(space)
        except socket.timeout:
            continue
        except OSError:
            return
        if got == 0:
            return
        counts[at] += got
