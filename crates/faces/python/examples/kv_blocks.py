"""A cache in blocks, as of a language model, moves from one process to another, layer by layer.

Blocks lie scattered at both ends. Each layer is one request, and its notification comes once all of
its blocks are in place. Both sides are asynchronous. The pools are numpy arrays here; a torch.Tensor,
on the CPU or on a GPU, takes the same calls.
"""

import asyncio
import multiprocessing

import numpy as np

import polyrail

LAYERS, POOL, BLOCK = 4, 256, 16 << 10
# Which blocks of its pool each side uses for the request, in order.
PREFILL_TABLE = [block * 7 % POOL for block in range(100)]
DECODE_TABLE = [block * 5 % POOL for block in range(100)]
RAILS = "127.0.0.1,127.0.0.2"


def compute(layer: int, index: int) -> int:
    """Stands for the model."""
    return (layer * 100 + index) % 256


def places(layer: int, table: list[int]) -> list[slice]:
    """Where the blocks of a layer lie in the pool, in bytes."""
    starts = ((layer * POOL + block) * BLOCK for block in table)
    return [slice(start, start + BLOCK) for start in starts]


async def prefill(pipe) -> None:
    metadata, description = pipe.recv()
    pool = np.zeros((LAYERS, POOL, BLOCK), dtype=np.uint8)
    with polyrail.Engine(rails=RAILS, name="prefill") as engine:
        peer = engine.add_peer(metadata)
        # Nobody else touches this pool.
        local, remote = engine.register(pool, access="local"), engine.import_region(description)
        under_way = []
        for layer in range(LAYERS):
            for index, block in enumerate(PREFILL_TABLE):
                pool[layer, block] = compute(layer, index)
            # It is sent while the next layer is computed.
            here = [local[place] for place in places(layer, PREFILL_TABLE)]
            there = [remote[place] for place in places(layer, DECODE_TABLE)]
            under_way.append(engine.write(peer, here, there, notification=bytes([layer])))
        for outcome in await asyncio.gather(*under_way):
            print(f"a layer of {outcome.nbytes} bytes was in place after {outcome.seconds:.4f} s")


async def decode(pipe) -> None:
    pool = np.zeros((LAYERS, POOL, BLOCK), dtype=np.uint8)
    with polyrail.Engine(rails=RAILS, name="decode") as engine:
        region = engine.register(pool, access="write")
        pipe.send((engine.metadata(), region.describe()))
        missing = set(range(LAYERS))
        async for notification in engine.notifications(timeout=30):
            layer = notification.data[0]
            for index, block in enumerate(DECODE_TABLE):
                assert (pool[layer, block] == compute(layer, index)).all()
            print(f"layer {layer} from {notification.peer.name}: {len(DECODE_TABLE)} blocks are right")
            missing.remove(layer)
            if not missing:
                return
        raise TimeoutError(f"layers {missing} did not come")


def run(side, pipe) -> None:
    asyncio.run(side(pipe))


if __name__ == "__main__":
    # A forked process could not use an engine of this one; a spawned one starts afresh.
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    sender = context.Process(target=run, args=(prefill, there))
    sender.start()
    asyncio.run(decode(here))
    sender.join()
    raise SystemExit(sender.exitcode)
