"""Tensors between the processes of `torch.distributed`, over Polyrail.

The processes find each other by the store of their process group; whatever backend it has stays as it
is::

    torch.distributed.init_process_group("gloo")
    with polyrail.torch.init(rails="eth0,eth1") as group:
        group.broadcast_params(model, src=0)
        if group.rank == 0:
            group.send([tensor, other], dst=1)
        elif group.rank == 1:
            group.recv([tensor, other], src=0)

Tensors are of the CPU or of CUDA, and contiguous. Nothing is copied on the way.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from ._polyrail import Engine

if TYPE_CHECKING:
    from ._polyrail import Peer, Region, Transfer

__all__ = ["Group", "Work", "init"]

Tensors: TypeAlias = (
    torch.nn.Module | Mapping[str, torch.Tensor] | Iterable[torch.Tensor] | torch.Tensor
)

# A receive has at most so many parts, so longer lists are several messages.
_PARTS = 1024
# Programs have the tags below it.
_BROADCAST = 1 << 63

# Engines of one group are told apart by the order in which `init` was called with it: a process may be in more groups
# than another.
_numbers: collections.defaultdict[tuple[int, ...], Iterator[int]] = collections.defaultdict(itertools.count)


def init(
    settings: dict[str, Any] | None = None,
    *,
    process_group: dist.ProcessGroup | None = None,
    **more: Any,
) -> Group:
    """Starts an engine in each process of the group; all of them must call it, in the same order.

    Settings are those of `polyrail.Engine`. Whoever can read the group's store can connect to the
    engines.
    """
    if process_group is None:
        # By its name: PyTorch 1 does not know the ranks of `None`.
        process_group = dist.group.WORLD
    ranks = dist.get_process_group_ranks(process_group)
    rank = dist.get_rank(process_group)
    key = f"polyrail/{next(_numbers[tuple(ranks)])}/{','.join(map(str, ranks))}"
    store = distributed_c10d.PrefixStore(key, distributed_c10d._get_default_store())
    engine = Engine(settings, name=more.pop("name", f"rank {rank}"), **more)
    store.set(str(rank), engine.metadata().hex())
    return Group(engine, rank, len(ranks), store)


class Group:
    """The engine of this process, and those of the others by rank; `init` makes it.

    Close it when the others need nothing of this process any more, or leave its `with` block then.
    """

    def __init__(self, engine: Engine, rank: int, size: int, store: distributed_c10d.Store) -> None:
        self.engine = engine
        self.rank = rank
        self.size = size
        self._store = store
        self._peers: dict[int, Peer] = {}

    def peer(self, rank: int) -> Peer:
        """The engine of a rank, which is connected when it is first used."""
        if rank not in range(self.size) or rank == self.rank:
            raise ValueError(f"rank is {rank}; allowed: 0 to {self.size - 1}, without {self.rank}")
        if rank not in self._peers:
            metadata = bytes.fromhex(self._store.get(str(rank)).decode())
            self._peers[rank] = self.engine.add_peer(metadata)
        return self._peers[rank]

    def send(self, tensors: Tensors, dst: int, *, tag: int = 0, timeout: float | None = None) -> None:
        """Sends tensors to the oldest `recv` of this tag there, and waits until they have landed."""
        self.isend(tensors, dst, tag=tag, timeout=timeout).wait()

    def recv(self, tensors: Tensors, src: int, *, tag: int = 0, timeout: float | None = None) -> None:
        """Fills tensors with what the other rank sends, and waits for it."""
        self.irecv(tensors, src, tag=tag, timeout=timeout).wait()

    def isend(
        self, tensors: Tensors, dst: int, *, tag: int = 0, timeout: float | None = None
    ) -> Work:
        """Like `send`, and does not wait."""
        return self._send(self._register(tensors), dst, _own(tag), timeout)

    def irecv(
        self, tensors: Tensors, src: int, *, tag: int = 0, timeout: float | None = None
    ) -> Work:
        """Like `recv`, and does not wait."""
        return self._receive(self._register(tensors), src, _own(tag), timeout)

    def broadcast_params(self, params: Tensors, src: int = 0, *, timeout: float | None = None) -> None:
        """Gives all ranks the tensors of rank `src`: of a module, with its buffers, of a state
        dictionary, or a list. All must call it, with tensors of the same sizes in the same order."""
        if src not in range(self.size):
            raise ValueError(f"src is {src}; allowed: 0 to {self.size - 1}")
        regions = self._register(params)
        if self.rank != src:
            self._receive(regions, src, _BROADCAST, timeout).wait()
            return
        others = (rank for rank in range(self.size) if rank != src)
        # All at once.
        for work in [self._send(regions, rank, _BROADCAST, timeout) for rank in others]:
            work.wait()

    def close(self) -> None:
        """Closes the engine; transfers that are under way end with an error."""
        self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _register(self, tensors: Tensors) -> list[Region]:
        given = _list(tensors)
        for device in {tensor.device for tensor in given if tensor.is_cuda}:
            # The engine's copies wait for no stream.
            torch.cuda.current_stream(device).synchronize()
        return self.engine.register([one for one in given if one.numel()], access="local")

    def _send(self, regions: list[Region], dst: int, tag: int, timeout: float | None) -> Work:
        peer = self.peer(dst)
        posted = [self.engine.send(peer, tag, part, timeout=timeout) for part in _messages(regions)]
        return Work(posted, regions, f"rank {dst}")

    def _receive(self, regions: list[Region], src: int, tag: int, timeout: float | None) -> Work:
        peer = self.peer(src)
        posted = [
            self.engine.receive(peer, tag, part, timeout=timeout) for part in _messages(regions)
        ]
        return Work(posted, regions, f"rank {src}")


class Work:
    """Tensors under way. Keep it until it is over: it is cancelled if it goes before."""

    def __init__(self, transfers: list[Transfer], regions: list[Region], other: str) -> None:
        self._transfers = transfers
        self._bytes = sum(region.nbytes for region in regions)
        self._other = other

    def done(self) -> bool:
        """Whether it is over, for better or worse."""
        return all(transfer.done() for transfer in self._transfers)

    def wait(self, timeout: float | None = None) -> None:
        """Waits until it is over; raises what went wrong. The timeout is for each 1024 tensors."""
        moved = sum(transfer.wait(timeout).nbytes for transfer in self._transfers)
        if moved != self._bytes:
            raise ValueError(
                f"{self._other} has {moved} bytes for tensors of {self._bytes} bytes: both ranks need "
                "tensors of the same sizes in the same order"
            )


def _list(tensors: Tensors) -> list[torch.Tensor]:
    if isinstance(tensors, torch.nn.Module):
        return [*tensors.parameters(), *tensors.buffers()]
    if isinstance(tensors, Mapping):
        return list(tensors.values())
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _messages(regions: list[Region]) -> list[list[Region]]:
    return [regions[at : at + _PARTS] for at in range(0, len(regions), _PARTS)]


def _own(tag: int) -> int:
    if tag not in range(_BROADCAST):
        raise ValueError(f"tag is {tag}; allowed: 0 to 2**63 - 1")
    return tag
