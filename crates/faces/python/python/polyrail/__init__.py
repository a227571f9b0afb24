"""Moves memory between processes over all NICs at once, on plain TCP.

An `Engine` listens on every rail. It registers memory as a `Region`, whose description lets a peer
import it as a `RemoteRegion`; then either side writes, reads, sends and receives without a copy in
between::

    import polyrail

    with polyrail.Engine(rails="127.0.0.1") as a, polyrail.Engine(rails="127.0.0.1") as b:
        target = b.register(bytearray(1 << 20))
        peer = a.add_peer(b.metadata())
        remote = a.import_region(target.describe())
        source = a.register(bytearray(b"x" * (1 << 20)))
        a.write(peer, source, remote, notification=b"done").wait(timeout=10)
        print(b.wait_notification(timeout=10).data)

Calls that wait let other threads run. In asyncio, `await` a transfer, and iterate over
`Engine.notifications()` by `async for`.
"""

from importlib.metadata import version as _version

from ._aio import Notifications
from ._errors import (
    Busy,
    Cancelled,
    DeadlineExceeded,
    EngineError,
    PeerError,
    PeerLost,
    PolyrailError,
    PostError,
    Refused,
    RegionError,
    RendezvousError,
    TransferError,
)
from ._polyrail import (
    Engine,
    Events,
    Group,
    GroupEvent,
    Member,
    Notification,
    Outcome,
    Peer,
    Prepared,
    Region,
    RemoteRegion,
    RemoteSlice,
    Slice,
    Transfer,
)

__all__ = [
    "Busy",
    "Cancelled",
    "DeadlineExceeded",
    "Engine",
    "EngineError",
    "Events",
    "Group",
    "GroupEvent",
    "Member",
    "Notification",
    "Notifications",
    "Outcome",
    "Peer",
    "PeerError",
    "PeerLost",
    "PolyrailError",
    "PostError",
    "Prepared",
    "Refused",
    "Region",
    "RegionError",
    "RemoteRegion",
    "RemoteSlice",
    "RendezvousError",
    "Slice",
    "Transfer",
    "TransferError",
]

__version__ = _version("polyrail")
