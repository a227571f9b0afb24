"""The compiled half of the package `polyrail`."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeAlias, final, overload

from typing_extensions import Buffer

from ._aio import Notifications

Access: TypeAlias = Literal["all", "read", "write", "local"]
Setting: TypeAlias = str | int | float | bool | Sequence[str | int]
Local: TypeAlias = Region | Slice | Iterable[Region | Slice]
Remote: TypeAlias = RemoteRegion | RemoteSlice | Iterable[RemoteRegion | RemoteSlice]

class _DLPack(Protocol):
    def __dlpack__(self) -> Any: ...

class _CudaArray(Protocol):
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...

class _Tensor(Protocol):
    def data_ptr(self) -> int: ...
    def element_size(self) -> int: ...

Memory: TypeAlias = Buffer | _Tensor | _CudaArray | _DLPack

@final
class Engine:
    """Polyrail in this process: it listens on every rail, and moves memory to and from its peers.

    Settings are keyword arguments or a dictionary, by the names that `polyrail config` shows. What is
    not given comes from the environment (POLYRAIL_*) unless `env=False`, or is the default. `name` is
    what peers call it. As a context manager it closes at the end of the block.
    """

    def __new__(
        cls,
        settings: dict[str, Setting] | None = None,
        *,
        name: str | None = None,
        env: bool = True,
        **more: Setting,
    ) -> Self: ...
    def metadata(self) -> bytes:
        """What a peer needs to connect to this engine: give it to `add_peer` there. Keep it as private as a password."""
    def invitation(self) -> str:
        """What lets somebody connect who gets the address by other means."""
    @property
    def addresses(self) -> list[str]:
        """Where this engine listens, an address for each rail."""
    @property
    def instance(self) -> int:
        """The number of this run of the engine, which no other has."""
    @property
    def settings(self) -> dict[str, Any]:
        """Every setting, and its value."""
    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
    def add_peer(self, metadata: Buffer) -> Peer:
        """Adds a peer by its metadata; transfers may be posted at once."""
    def connect(self, address: str, *, timeout: float | None = None) -> Peer:
        """Adds the peer that listens on "HOST:PORT" or "HOST:PORT/INVITATION", once it has answered.

        Of several addresses of the host, the first that answers counts.
        """
    def accept_peer(self, timeout: float | None = None) -> Peer | None:
        """The next peer that came to this engine by itself."""
    def peers(self) -> list[Peer]:
        """Every peer that is known now."""
    def remove_peer(self, peer: Peer) -> None:
        """Ends all transfers with a peer and forgets it; it is told so."""
    def publish(self, path: str | PathLike[str], data: Buffer | None = None) -> None:
        """Writes the metadata to a file, for `find_peer`; with bytes of your own, if you like."""
    def find_peer(
        self, path: str | PathLike[str], *, timeout: float | None = None
    ) -> tuple[Peer, bytes]:
        """Adds the peer that has published its metadata in this file, and waits for the file."""
    def join(
        self, group: str, *, name: str | None = None, timeout: float | None = 60.0
    ) -> Group:
        """Joins a group of engines at the place that the setting `rendezvous` names."""
    @overload
    def register(
        self,
        memory: list[Memory] | tuple[Memory, ...],
        *,
        access: Access = "all",
        granted_to: Iterable[Peer | int] | None = None,
    ) -> list[Region]: ...
    @overload
    def register(
        self,
        memory: Memory,
        *,
        access: Access = "all",
        granted_to: Iterable[Peer | int] | None = None,
    ) -> Region:
        """Registers memory for transfers: a buffer, a tensor, or a list of such. The region keeps it."""
    def register_address(
        self,
        address: int,
        nbytes: int,
        *,
        cuda: bool = False,
        keep: object = None,
        access: Access = "all",
        granted_to: Iterable[Peer | int] | None = None,
    ) -> Region:
        """Registers memory by its address, of the host or of a GPU. `keep` is its owner, which the region keeps."""
    def import_region(self, description: Buffer) -> RemoteRegion:
        """Reads the description of a peer's region, from `Region.describe` there."""
    def write(
        self,
        peer: Peer,
        local: Local,
        remote: Remote,
        *,
        notification: Buffer | None = None,
        timeout: float | None = None,
    ) -> Transfer:
        """Writes bytes from here into the peer's memory; then the peer gets the notification."""
    def read(
        self, peer: Peer, local: Local, remote: Remote, *, timeout: float | None = None
    ) -> Transfer:
        """Reads bytes of the peer's memory into memory here."""
    def send(
        self, peer: Peer, tag: int, local: Local, *, timeout: float | None = None
    ) -> Transfer:
        """Sends a message that fills the peer's oldest receive of this tag, and waits for that."""
    def receive(
        self, peer: Peer, tag: int, local: Local, *, timeout: float | None = None
    ) -> Transfer:
        """Room for a message of this tag from the peer."""
    def prepare_write(
        self,
        peer: Peer,
        local: Local,
        remote: Remote,
        *,
        notification: Buffer | None = None,
        timeout: float | None = None,
    ) -> Prepared:
        """A write that is checked and cut once, and posted again and again."""
    def prepare_read(
        self, peer: Peer, local: Local, remote: Remote, *, timeout: float | None = None
    ) -> Prepared:
        """A read that is checked and cut once, and posted again and again."""
    def prepare_send(
        self, peer: Peer, tag: int, local: Local, *, timeout: float | None = None
    ) -> Prepared:
        """A send that is checked and cut once, and posted again and again."""
    def prepare_receive(
        self, peer: Peer, tag: int, local: Local, *, timeout: float | None = None
    ) -> Prepared:
        """A receive that is checked and cut once, and posted again and again."""
    def notify(self, peer: Peer, data: Buffer, *, timeout: float | None = None) -> Transfer:
        """Tells a peer something. It goes on though the transfer is dropped; `drain` waits for all of them."""
    def wait_notification(self, timeout: float | None = None) -> Notification | None:
        """The next notification; None if none came within the timeout, or the engine is closed."""
    def take_notifications(self) -> list[Notification]:
        """All notifications that have come, in order. Never blocks."""
    def notifications(self, timeout: float | None = None) -> Notifications:
        """Notifications as they come, for `for` and `async for`."""
    def events(self) -> Events:
        """A descriptor that is readable once something has happened, for loops other than asyncio's."""
    def progress(self) -> bool:
        """Moves data if callers are to (setting progress = caller); says whether any moved."""
    def drain(self, timeout: float | None = None) -> bool:
        """Waits until every transfer that was posted here is over, detached ones too."""
    def stats(self) -> dict[str, Any]:
        """All counters."""
    def dump(self) -> str:
        """The state of everything, for people."""
    def close(self) -> None:
        """Tells the peers, ends all transfers with an error, and stops the threads."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...

@final
class Peer:
    """A remote engine, as one engine knows it."""

    @property
    def name(self) -> str: ...
    @property
    def instance(self) -> int: ...
    @property
    def is_same_host(self) -> bool: ...
    @property
    def proven_names(self) -> list[str]: ...
    @property
    def flows(self) -> tuple[int, int]:
        """How many connections are up, and how many there are to be."""
    @property
    def lost(self) -> str | None:
        """Why it is gone; None while it is there."""
    def __hash__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...

@final
class Notification:
    """What a peer told: after the bytes of the write that it came with, if it came with one."""

    @property
    def peer(self) -> Peer: ...
    @property
    def data(self) -> bytes: ...

@final
class Region:
    """Memory that an engine may send from and receive into. `region[a:b]` is a part, in bytes."""

    def describe(self) -> bytes:
        """What a peer needs to reach it: give it to `Engine.import_region` there."""
    def close(self) -> None:
        """Ends it: then nothing touches the memory any more, and the object that owns it is let go of."""
    @property
    def nbytes(self) -> int: ...
    @property
    def readonly(self) -> bool: ...
    def __len__(self) -> int: ...
    def __getitem__(self, part: slice, /) -> Slice: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...

@final
class Slice:
    """A part of a `Region`, for transfers."""

    @property
    def nbytes(self) -> int: ...
    def __len__(self) -> int: ...
    def __getitem__(self, part: slice, /) -> Slice: ...

@final
class RemoteRegion:
    """Memory of a peer. `remote[a:b]` is a part, in bytes."""

    @property
    def nbytes(self) -> int: ...
    @property
    def access(self) -> Access: ...
    @property
    def is_on_device(self) -> bool: ...
    def __len__(self) -> int: ...
    def __getitem__(self, part: slice, /) -> RemoteSlice: ...

@final
class RemoteSlice:
    """A part of a `RemoteRegion`, for transfers."""

    @property
    def nbytes(self) -> int: ...
    def __len__(self) -> int: ...
    def __getitem__(self, part: slice, /) -> RemoteSlice: ...

@final
class Transfer:
    """A write, read, send or receive under way. Keep it until it is over, or `detach()` it: else it is cancelled.

    One of `Engine.notify` is detached from the start.
    """

    def done(self) -> bool:
        """Whether it is over, for better or worse. Never blocks."""
    def outcome(self) -> Outcome | None:
        """How it ended, None while it is under way; raises TransferError if it failed."""
    def wait(self, timeout: float | None = None) -> Outcome:
        """Waits until it is over; raises TransferError if it failed, TimeoutError if it goes on."""
    def cancel(self) -> None:
        """Asks for an early end and returns at once."""
    def detach(self) -> None:
        """It goes on though this object may go. Keep its regions."""
    @property
    def bytes_done(self) -> int: ...
    def __await__(self) -> Generator[Any, None, Outcome]: ...

@final
class Outcome:
    """How a transfer ended that did not fail."""

    @property
    def nbytes(self) -> int: ...
    @property
    def seconds(self) -> float: ...

@final
class Prepared:
    """A request that is checked and cut once, and posted as often as you like."""

    def post(self, notification: Buffer | None = None) -> Transfer:
        """Posts it; a write may have a notification of its own for this once. Raises Busy if too many are under way."""
    @property
    def nbytes(self) -> int: ...
    @property
    def segments(self) -> int: ...
    @property
    def path(self) -> str: ...

@final
class Events:
    """A descriptor that is readable once something has happened. Clear it first, and look then."""

    def fileno(self) -> int: ...
    def clear(self) -> None: ...

@final
class Group:
    """The membership of an engine in a group; `Engine.join` makes it."""

    @property
    def name(self) -> str:
        """The name of this engine in the group."""
    @property
    def expected(self) -> int | None:
        """How many members the launcher of the ranks has started; None where nobody knows."""
    def members(self) -> list[Member]:
        """The other members now, by name."""
    def wait_for(self, count: int | None = None, *, timeout: float | None = None) -> list[Member]:
        """The other members, once the group has `count` with this one; raises TimeoutError."""
    def peer(self, member: Member | str) -> Peer:
        """A member, or the one of this name, as a peer of the engine."""
    def next_event(self, timeout: float | None = None) -> GroupEvent | None:
        """The next change; None if there was none within the timeout, or the group was left."""
    def leave(self) -> None:
        """Leaves the group, so that the others hear of it at once."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...

@final
class Member:
    """An engine in a group."""

    @property
    def name(self) -> str: ...
    @property
    def addresses(self) -> list[str]: ...
    def __eq__(self, other: object, /) -> bool: ...

@final
class GroupEvent:
    """Somebody has joined a group, or has left it or died."""

    @property
    def name(self) -> str: ...
    @property
    def joined(self) -> Member | None:
        """Who has joined; None: it has left."""
