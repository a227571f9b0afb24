"""What can go wrong, by whose doing."""

from __future__ import annotations


class PolyrailError(Exception):
    """Any error of an engine.

    Wrong arguments raise Python's own exceptions instead: TypeError, ValueError, IndexError,
    BufferError.
    """

    reason: str
    """The cause, for programs: "peer_lost"."""
    peer: str | None
    """What the peer calls itself, if it has to do with one."""
    why: str | None
    """What is behind the cause, for people; of `Refused` and for programs, "access_denied"."""
    help: str | None
    """What to do about it, where the message alone does not say."""

    def __init__(
        self,
        message: str,
        reason: str = "",
        peer: str | None = None,
        why: str | None = None,
        help: str | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.peer = peer
        self.why = why
        self.help = help
        if help:
            self.add_note(f"help: {help}")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (*self.args, self.reason, self.peer, self.why, self.help)


class EngineError(PolyrailError):
    """An engine can't start: a setting is wrong, or the system refused something. Or it is closed."""


class PeerError(PolyrailError):
    """A peer can't be added."""


class RendezvousError(PolyrailError):
    """A group can't be joined: the place can't be reached or refuses, the name is taken, or the engine is closed."""


class RegionError(PolyrailError):
    """Memory can't be registered, a description can't be read, or the region or its engine is closed."""


class PostError(PolyrailError):
    """A transfer can't be posted: nothing of it was sent."""


class Busy(PostError):
    """Too many transfers to the peer are under way: post again when an older one is over."""


class TransferError(PolyrailError):
    """A transfer has failed."""


class PeerLost(TransferError):
    """The peer is gone, or is given up."""


class DeadlineExceeded(TransferError, TimeoutError):
    """The transfer was not complete within its `timeout`, and is over."""


class Cancelled(TransferError):
    """The transfer was cancelled here."""


class Refused(TransferError):
    """The peer refused it; `why` says the reason, such as "access_denied" or "region_dropped"."""
