"""asyncio: transfers and notifications are awaited, and no thread polls."""

import asyncio
import gc
import os
import threading
import time

import polyrail
import pytest
from conftest import SOON, engine, wait_for


def run(main):
    return asyncio.run(asyncio.wait_for(main, SOON))


def test_many_transfers_are_awaited_at_once(pair):
    a, b, to_b, to_a = pair

    async def main():
        target = bytearray(64 << 10)
        there, here = b.register(target), a.register(bytearray(b"y" * (64 << 10)))
        remote = a.import_region(there.describe())
        writes = [a.write(to_b, here[at:][:1024], remote[at:][:1024]) for at in range(0, 65536, 1024)]
        threads = threading.active_count()
        outcomes = await asyncio.gather(*writes)
        assert threading.active_count() == threads
        assert sum(outcome.nbytes for outcome in outcomes) == 65536 and target == b"y" * 65536
        # One that is over already.
        assert (await writes[0]).nbytes == 1024

    run(main())


def test_a_failure_is_raised_where_it_is_awaited(pair):
    a, _, to_b, _ = pair

    async def main():
        receive = a.receive(to_b, 1, a.register(bytearray(8)))
        asyncio.get_running_loop().call_soon(receive.cancel)
        with pytest.raises(polyrail.Cancelled):
            await receive

    run(main())


def test_a_cancelled_task_leaves_its_transfer_alone(pair):
    a, b, to_b, to_a = pair

    async def main():
        target = bytearray(8)
        receive = b.receive(to_a, 1, b.register(target))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await receive
        await a.send(to_b, 1, a.register(b"12345678", access="local"))
        await receive
        assert target == b"12345678"

    run(main())


def test_notifications_are_iterated(pair):
    a, b, to_b, _ = pair

    async def main():
        async def listen():
            return [one.data async for one in b.notifications()]

        listening = asyncio.create_task(listen())
        for number in range(100):
            await a.notify(to_b, bytes([number]))
        while b.stats()["notifications_waiting"]:
            await asyncio.sleep(0)
        await asyncio.to_thread(b.close)
        assert sorted(await listening) == [bytes([number]) for number in range(100)]
        assert [one async for one in a.notifications(timeout=0.02)] == []

    run(main())


def test_each_loop_watches_and_what_is_gone_is_watched_no_more(pair):
    a, b, to_b, to_a = pair

    async def hello():
        await a.notify(to_b, b"hello")
        async for notification in b.notifications():
            return notification.data

    def descriptors():
        return len(os.listdir("/proc/self/fd"))

    assert run(hello()) == b"hello"
    # Connections have descriptors, too.
    wait_for(lambda: all(peer.flows[0] == peer.flows[1] for peer in [to_a, to_b]))
    before = descriptors()
    for _ in range(9):
        assert run(hello()) == b"hello"
        gc.collect()
    # Those of the last loop stay until their engine is looked at again.
    assert descriptors() <= before + 4

    async def waits(one, peer):
        # What is over at once is not waited for, and then the loop does not watch this engine.
        receive = one.receive(peer, 1, one.register(bytearray(8)))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await receive

    async def engines_come_and_go():
        await hello()
        await waits(a, to_b)
        await waits(b, to_a)
        before = descriptors()
        for _ in range(3):
            short = engine("short")
            peer = short.add_peer(b.metadata())
            await short.notify(peer, b"hello")
            await waits(short, peer)
            short.close()
            del short, peer
        await hello()
        while descriptors() > before:
            await asyncio.sleep(0)

    run(engines_come_and_go())


def test_a_loop_that_waits_does_not_spin(pair):
    a, _, to_b, _ = pair

    async def main():
        receive = a.receive(to_b, 1, a.register(bytearray(8)))
        await a.notify(to_b, b"hello")
        before = time.thread_time()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await receive
        assert time.thread_time() - before < 0.1

    run(main())


def test_progress_by_the_caller_moves_while_somebody_awaits(monkeypatch):
    looks = []
    look = polyrail._aio._Watch._look
    monkeypatch.setattr(polyrail._aio._Watch, "_look", lambda watch: (looks.append(1), look(watch)))
    with engine("a", progress="caller") as a, engine("b") as b:
        to_b = a.add_peer(b.metadata())

        async def main():
            target = bytearray(1 << 20)
            there, here = b.register(target), a.register(bytearray(b"z" * (1 << 20)))
            await a.write(to_b, here, a.import_region(there.describe()))
            assert target == b"z" * (1 << 20)
            # Nothing happens to it, so nothing but the loop makes it move.
            waiting = asyncio.ensure_future(a.receive(to_b, 1, here))
            before = len(looks)
            while len(looks) < before + 100:
                await asyncio.sleep(0.001)
            waiting.cancel()

        run(main())
