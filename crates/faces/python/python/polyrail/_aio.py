"""What asyncio waits for: one descriptor for each loop and engine tells of everything."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from ._polyrail import Engine, Notification, Outcome, Transfer

T = TypeVar("T")


class _Watch:
    """Tells the tasks of a loop what has happened to an engine. It does not keep the engine."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self._events = engine.events()
        self._waiting: dict[asyncio.Future[Any], Callable[[], Any]] = {}
        # Then nothing happens unless somebody calls the engine.
        self._moves_by_caller = engine.settings["progress"] == "caller"
        loop.add_reader(self._events, self._look)
        weakref.finalize(engine, _stop, weakref.ref(loop), weakref.ref(self)).atexit = False

    def _look(self) -> None:
        # Cleared first: what happens after the look makes it readable again.
        self._events.clear()
        for future, poll in list(self._waiting.items()):
            if future.done():
                continue
            try:
                found = poll()
            except Exception as error:
                future.set_exception(error)
            else:
                if found is not None:
                    future.set_result(found)

    async def until(self, poll: Callable[[], T | None]) -> T:
        """What `poll` returns once that is not None, or what it raises."""
        found = poll()
        if found is not None:
            return found
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting[future] = poll
        try:
            while self._moves_by_caller and not future.done():
                await asyncio.sleep(0)
                self._look()
            return await future
        finally:
            del self._waiting[future]


    def stop(self, loop: asyncio.AbstractEventLoop) -> None:
        """On the thread of the loop."""
        if not loop.is_closed():
            loop.remove_reader(self._events)


def _stop(loop: weakref.ref[asyncio.AbstractEventLoop], watch: weakref.ref[_Watch]) -> None:
    """Stops watching an engine that is gone, from whichever thread noticed."""
    running, watching = loop(), watch()
    if running is not None and watching is not None and not running.is_closed():
        running.call_soon_threadsafe(watching.stop, running)


_watches: weakref.WeakKeyDictionary[
    Engine, weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Watch]
] = weakref.WeakKeyDictionary()


def _watch(engine: Engine) -> _Watch:
    loop = asyncio.get_running_loop()
    loops = _watches.setdefault(engine, weakref.WeakKeyDictionary())
    watch = loops.get(loop)
    if watch is None:
        watch = loops[loop] = _Watch(engine, loop)
    return watch


async def ended(engine: Engine, transfer: Transfer) -> Outcome:
    """How a transfer ends. If the task is cancelled, the transfer goes on."""
    outcome = transfer.outcome()
    return outcome if outcome is not None else await _watch(engine).until(transfer.outcome)


class _Closed(Exception):
    """No notification will come."""


class Notifications:
    """Notifications as they come, for `for` and `async for`; `Engine.notifications` makes it.

    It ends when the engine is closed, or when none has come for `timeout` seconds. Any number may be
    open: each notification goes to one of them.
    """

    def __init__(self, engine: Engine, timeout: float | None = None) -> None:
        self._engine = engine
        self._timeout = timeout

    def __iter__(self) -> Notifications:
        return self

    def __next__(self) -> Notification:
        notification = self._engine.wait_notification(self._timeout)
        if notification is None:
            raise StopIteration
        return notification

    def __aiter__(self) -> Notifications:
        return self

    async def __anext__(self) -> Notification:
        try:
            async with asyncio.timeout(self._timeout):
                return await _watch(self._engine).until(self._poll)
        except (TimeoutError, _Closed):
            raise StopAsyncIteration from None

    def _poll(self) -> Notification | None:
        # Looked at first: what comes before the end is taken.
        is_closed = self._engine.closed
        notification = self._engine.wait_notification(0)
        if notification is None and is_closed:
            raise _Closed
        return notification
