"""New weights for N workers at once, as after a step of training: `weights.py [N]`.

Each worker is a process. It tells the trainer once where its tensors are; from then on the trainer
writes into them, and the notification says that all of them are there.
"""

import multiprocessing
import sys
import zlib

import numpy as np

import polyrail

SHAPES = [(256, 1024), (1024,), (1024, 256), (256,)]
STEPS = 3
RAILS = "127.0.0.1,127.0.0.2"


def checksum(tensors: list[np.ndarray]) -> bytes:
    crc = 0
    for tensor in tensors:
        crc = zlib.crc32(tensor, crc)
    return crc.to_bytes(4, "little")


def worker(rank: int, pipe) -> None:
    weights = [np.zeros(shape, dtype=np.float32) for shape in SHAPES]
    with polyrail.Engine(rails=RAILS, name=f"worker {rank}") as engine:
        regions = engine.register(weights, access="write")
        pipe.send((engine.metadata(), [region.describe() for region in regions]))
        for step in range(STEPS):
            notification = engine.wait_notification(timeout=30)
            if notification is None:
                raise TimeoutError(f"the weights of step {step} did not come")
            assert checksum(weights) == notification.data
            print(f"worker {rank} has the weights of step {step}")
            # The trainer may write the next ones.
            pipe.send(step)


def main(count: int) -> None:
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for rank in range(count):
        here, there = context.Pipe()
        processes.append(context.Process(target=worker, args=(rank, there)))
        processes[-1].start()
        pipes.append(here)

    weights = [np.zeros(shape, dtype=np.float32) for shape in SHAPES]
    with polyrail.Engine(rails=RAILS, name="trainer") as engine:
        local = engine.register(weights, access="local")
        # Checked and cut once, and posted in every step.
        prepared = []
        for pipe in pipes:
            metadata, descriptions = pipe.recv()
            remote = [engine.import_region(description) for description in descriptions]
            prepared.append(engine.prepare_write(engine.add_peer(metadata), local, remote, timeout=30))
        random = np.random.default_rng(1)
        for step in range(STEPS):
            for tensor in weights:
                tensor[...] = random.random(tensor.shape, dtype=np.float32)
            check = checksum(weights)
            transfers = [write.post(notification=check) for write in prepared]
            # One that failed would raise here, and name the worker: `except polyrail.PeerLost as lost`.
            seconds = max(transfer.wait().seconds for transfer in transfers)
            print(f"step {step}: {count} workers have {prepared[0].nbytes} bytes after {seconds:.4f} s")
            for pipe in pipes:
                pipe.recv()
    for process in processes:
        process.join()
    sys.exit(max(process.exitcode for process in processes))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
