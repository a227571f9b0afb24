#!/usr/bin/env python3
"""Has NCCL reduce and send over a net plugin between two processes with a GPU each, and compares every element.

    nccl_two_gpus.py PLUGIN [NAME=VALUE ...]

Needs PyTorch and two GPUs. The variables reach NCCL and the plugin; NCCL's own ways between GPUs of a host are off. For
memory of GPUs and messages in fragments, by the double of Polyrail's tests:

    nccl_two_gpus.py target/release/libnccl_net_scatter.so SCATTER_MODE=unpack-gpu NCCL_NET_GDR_LEVEL=SYS NCCL_PROTO=Simple

Exit codes: 0 every element was right, 1 one was wrong, or a process did not end within 60 s.
"""

import os
import socket
import subprocess
import sys
import time

COUNTS = (100_003, 1_000, 1, 33_000_001, 4_000_000)
DEADLINE_S = 60


def main():
    if len(sys.argv) < 2 or not all("=" in pair for pair in sys.argv[2:]):
        sys.exit(__doc__)
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    variables = {
        "NCCL_NET_PLUGIN": os.path.abspath(sys.argv[1]), "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1",
        "NCCL_NVLS_ENABLE": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2",
        **dict(pair.split("=", 1) for pair in sys.argv[2:]),
    }
    ranks = []
    for rank in ("0", "1"):
        environment = {**os.environ, **variables, "RANK": rank, "SCATTER_GPUS": rank, "RANK_OF_TWO": rank}
        ranks.append(subprocess.Popen([sys.executable, __file__], env=environment))
    deadline = time.monotonic() + DEADLINE_S
    failed = False
    for rank, process in enumerate(ranks):
        try:
            failed |= process.wait(max(0, deadline - time.monotonic())) != 0
        except subprocess.TimeoutExpired:
            print(f"rank {rank}: not done after {DEADLINE_S} s")
            process.kill()
            failed = True
    sys.exit(int(failed))


def rank():
    import torch
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    wrong = False
    for count in COUNTS:
        numbers = torch.arange(count, device="cuda")
        values = (numbers % 1000).float() * (rank + 1)
        torch.cuda.synchronize()
        began = time.perf_counter()
        dist.all_reduce(values)
        torch.cuda.synchronize()
        took_ms = (time.perf_counter() - began) * 1e3
        reduced = torch.equal(values, (numbers % 1000).float() * 3)
        sent = (numbers % 777).float() if rank == 0 else torch.zeros(count, device="cuda")
        (dist.send if rank == 0 else dist.recv)(sent, 1 - rank)
        torch.cuda.synchronize()
        arrived = torch.equal(sent, (numbers % 777).float())
        wrong |= not (reduced and arrived)
        print(f"rank {rank}  {count:>9} floats  all_reduce {'right' if reduced else 'WRONG'}, {took_ms:.1f} ms  "
              f"send {'right' if arrived else 'WRONG'}", flush=True)
    print(f"rank {rank}  done, NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}", flush=True)
    # A process group that is destroyed waits for the other rank, which may have failed.
    os._exit(int(wrong))


rank() if "RANK_OF_TWO" in os.environ else main()
