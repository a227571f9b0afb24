"""What the tests share: agents, memory whose every word tells its place, waiting with a deadline, processes."""

import importlib
import multiprocessing
import os
import sys
import time
import traceback

import numpy as np

SECONDS = 30


def api():
    """NIXL's Python interface, under the name that the installed package has."""
    for name in ("nixl_cu12._api", "nixl_cu13._api", "nixl._api"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    sys.exit("NIXL is not installed: pip install nixl-cu12")


def agent(name, **params):
    nixl = api()
    made = nixl.nixl_agent(name, nixl.nixl_agent_config(backends=[]))
    made.create_backend("POLYRAIL", {"rails": "lo", **params})
    return made


def add(agent, metadata):
    """Loads the metadata of another agent, and returns its name as a text."""
    name = agent.add_remote_agent(metadata)
    return name.decode() if isinstance(name, bytes) else name


def pattern(size, seed):
    """Words that differ by place and seed, so that bytes in a wrong place, or of another transfer, are seen."""
    words = np.arange(size // 8, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
    return words.view(np.uint8)


def register(agent, memory, kind="DRAM"):
    return agent.register_memory([(memory.ctypes.data, memory.nbytes, 0, "")], kind)


def descs(agent, memory, pieces):
    """Descriptors of pieces, each an offset and a length."""
    base = memory.ctypes.data
    return agent.get_xfer_descs([(base + offset, length, 0) for offset, length in pieces], "DRAM")


def wait_for(what, look, seconds=SECONDS):
    """Looks until there is something, and says what did not come."""
    until = time.monotonic() + seconds
    while True:
        seen = look()
        if seen:
            return seen
        if time.monotonic() > until:
            raise AssertionError(f"{what} did not come in {seconds} s")
        time.sleep(0)


def run(agent, handle, notification=b""):
    """Posts a request and waits until it is complete."""
    state = agent.transfer(handle, notification)
    if state == "PROC":
        state = wait_for("the end of a transfer", lambda: (s := agent.check_xfer_state(handle)) != "PROC" and s)
    assert state == "DONE", f"the transfer ended as {state}"


def notification(agent, sender):
    """The next messages of this agent."""
    return wait_for(f"a notification of {sender}", lambda: agent.get_new_notifs().get(sender))


def _main(pipe, function, args):
    try:
        function(pipe, *args)
        pipe.send(("over", None))
    except BaseException:
        pipe.send(("failed", traceback.format_exc()))
    pipe.close()
    # The end of the process is not what is tested, and NIXL's other backends take their time there.
    os._exit(0)


class Child:
    """A process that runs a function with a pipe; what it raises is raised here."""

    def __init__(self, function, *args):
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_main, args=(theirs, function, args), daemon=True)
        self.process.start()
        theirs.close()

    def recv(self, seconds=SECONDS):
        if not self.pipe.poll(seconds):
            raise AssertionError(f"process {self.process.pid} said nothing in {seconds} s")
        got = self.pipe.recv()
        if isinstance(got, tuple) and got[0] == "failed":
            raise AssertionError("in the other process:\n" + got[1])
        return got

    def send(self, value):
        self.pipe.send(value)

    def end(self):
        assert self.recv() == ("over", None)
        self.process.join(SECONDS)

    def kill(self):
        self.process.kill()
        self.process.join(SECONDS)


def raises(name, call):
    """That a call raises this exception of NIXL."""
    try:
        call()
    except Exception as error:
        assert type(error).__name__ == name, f"{type(error).__name__} instead of {name}: {error}"
        return
    raise AssertionError(f"{name} was not raised")
