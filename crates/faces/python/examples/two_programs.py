"""Two programs that find each other by a file, each in a terminal of its own:

    python two_programs.py receive FILE
    python two_programs.py send FILE

Without words it starts both.
"""

import os
import subprocess
import sys
import tempfile

import polyrail

SIZE = 1 << 20


def receive(file):
    with polyrail.Engine(name="receiver") as engine:
        target = bytearray(SIZE)
        region = engine.register(target)
        engine.publish(file, region.describe())  # whoever can read the file may connect and write
        notification = engine.wait_notification(timeout=60)
        os.unlink(file)
        assert notification and target == b"x" * SIZE
        print(f"{SIZE} bytes came, and {notification.data!r}")


def send(file):
    with polyrail.Engine(name="sender") as engine:
        peer, description = engine.find_peer(file, timeout=60)  # waits until the file is there
        remote = engine.import_region(description)
        source = engine.register(bytearray(b"x" * SIZE), access="local")
        engine.write(peer, source, remote, notification=b"done").wait(timeout=60)


def both():
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "receiver.polyrail")
        words = ["receive", "send"]
        programs = [subprocess.Popen([sys.executable, __file__, word, file]) for word in words]
        sys.exit(any([program.wait(timeout=60) for program in programs]))


match sys.argv[1:]:
    case ["receive", file]:
        receive(file)
    case ["send", file]:
        send(file)
    case _:
        both()
