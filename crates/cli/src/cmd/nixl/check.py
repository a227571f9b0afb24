"""Makes an agent with the backend, and moves memory from it to itself. `polyrail doctor` runs it."""

import sys
import time

package = __import__(sys.argv[1] + "._api", fromlist=["_api"])
agent = package.nixl_agent("check", package.nixl_agent_config(backends=[]))
agent.create_backend("POLYRAIL", {})
source, target = bytearray(range(256)) * 4096, bytearray(1 << 20)


def register(memory):
    from ctypes import addressof, c_char

    address = addressof((c_char * len(memory)).from_buffer(memory))
    return agent.register_memory([(address, len(memory), 0, "")], "DRAM").trim()


handle = agent.initialize_xfer("WRITE", register(source), register(target), "check", b"done")
state, until = agent.transfer(handle, b"done"), time.monotonic() + 20
while state == "PROC" and time.monotonic() < until:
    state = agent.check_xfer_state(handle)
if state != "DONE":
    sys.exit(f"the transfer of 1 MiB to itself ended as {state}")
if source != target:
    sys.exit("the transfer of 1 MiB to itself has put other bytes in place")
print("polyrail-nixl-check: done", flush=True)
