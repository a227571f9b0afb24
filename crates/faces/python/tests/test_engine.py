"""Engines, peers, transfers, notifications and errors."""

import array
import gc
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref

import polyrail
import pytest
from conftest import SOON, engine


def test_a_write_lands_before_its_notification(pair):
    a, b, to_b, to_a = pair
    source, target = bytearray(range(256)) * 4096, bytearray(1 << 20)
    local, region = a.register(source), b.register(target)
    remote = a.import_region(region.describe())
    outcome = a.write(to_b, local, remote, notification=b"done").wait(SOON)
    assert outcome.nbytes == 1 << 20 and outcome.seconds > 0
    notification = b.wait_notification(SOON)
    assert notification.data == b"done" and notification.peer == to_a
    assert target == source

    # A region that nobody keeps has ended.
    remote = a.import_region(b.register(target).describe())
    with pytest.raises(polyrail.Refused) as refused:
        a.write(to_b, local, remote).wait(SOON)
    refused = refused.value
    assert (refused.reason, refused.peer, refused.why) == ("refused", "b", "region_dropped")


def test_parts_are_slices_of_bytes_and_lists_of_them(pair):
    a, b, to_b, _ = pair
    source, target = bytearray(b"0123456789"), bytearray(10)
    local, there = a.register(source), b.register(target)
    remote = a.import_region(there.describe())
    a.write(to_b, [local[0:2], local[-3:]], [remote[5:7], remote[:3]]).wait(SOON)
    assert target == b"789\0\0" b"01\0\0\0"
    assert (len(local[2:][1:3]), local[2:8][1:3].nbytes, remote[2:4].nbytes) == (2, 2, 2)
    a.read(to_b, local[2:][1:3], remote[5:7]).wait(SOON)
    assert source == b"0120156789"
    with pytest.raises(ValueError, match="local has 1 parts and remote has 2"):
        a.write(to_b, local, [remote[:5], remote[5:]])
    with pytest.raises(polyrail.PostError) as lengths:
        a.write(to_b, local, remote[:5])
    assert lengths.value.reason == "lengths"


@pytest.mark.parametrize("part", [slice(0, 11), slice(6, 3), slice(-11, None), slice(None, 2**70)])
def test_a_slice_outside_is_refused_and_not_cut_short(pair, part):
    a = pair[0]
    region = a.register(bytearray(10))
    with pytest.raises(IndexError, match="allowed: 0 <= start <= stop <= 10"):
        region[part]
    with pytest.raises(IndexError):
        a.import_region(region.describe())[part]


def test_what_is_no_slice_of_bytes_is_refused(pair):
    region = pair[0].register(bytearray(10))
    with pytest.raises(ValueError, match="step 2; allowed: 1"):
        region[::2]
    with pytest.raises(TypeError, match="allowed: a slice of bytes"):
        region[3]
    with pytest.raises(TypeError, match="local has a bytearray; allowed: Region, Slice"):
        pair[0].send(pair[2], 1, bytearray(3))


def test_bad_arguments_are_named_with_what_is_allowed(pair, tmp_path):
    a, _, to_b, _ = pair
    region = a.register(bytearray(3))
    for wrong in [-1, 2**64]:
        with pytest.raises(ValueError, match=f"tag is {wrong}; allowed: 0 to 2"):
            a.send(to_b, wrong, region)
        with pytest.raises(ValueError, match="allowed: 0 to 2"):
            a.prepare_receive(to_b, wrong, region)
    with pytest.raises(TypeError, match="tag has a str; allowed: an integer"):
        a.receive(to_b, "7", region)
    with pytest.raises(ValueError, match="address is -1; allowed: 0 to 2"):
        a.register_address(-1, 8)
    with pytest.raises(TypeError, match="nbytes has a float; allowed: an integer"):
        a.register_address(16, 8.0)
    for wrong in [[3], ["b"], to_b, 3]:
        with pytest.raises(TypeError, match="granted_to has a .*; allowed: Peers or the instances of peers, in a list"):
            a.register(bytearray(3), granted_to=wrong if wrong != [3] else [3.0])
    with pytest.raises(TypeError, match="settings has a int; allowed: names of settings"):
        polyrail.Engine({5: "1MiB"})
    with pytest.raises(OSError, match=str(tmp_path)):
        a.publish(tmp_path)


def test_what_takes_bytes_takes_whatever_is_like_them_and_names_what_is_not(pair, tmp_path):
    a, b, to_b, _ = pair
    for alike in [b"abc", bytearray(b"abc"), memoryview(b"a-b-c")[::2], array.array("B", b"abc")]:
        a.notify(to_b, alike)
        assert b.wait_notification(SOON).data == b"abc"
    here, there = a.register(bytearray(3)), a.import_region(b.register(bytearray(3)).describe())
    prepared = a.prepare_write(to_b, here, there)
    calls = {
        "data": [lambda wrong: a.notify(to_b, wrong), lambda wrong: a.publish(tmp_path / "a", wrong)],
        "metadata": [a.add_peer],
        "description": [a.import_region],
        "notification": [
            prepared.post,
            lambda wrong: a.write(to_b, here, there, notification=wrong),
            lambda wrong: a.prepare_write(to_b, here, there, notification=wrong),
        ],
    }
    for field, call in [(field, call) for field, calls in calls.items() for call in calls]:
        for wrong in ["x", 3, [1, 2]]:
            named = f"{field} has a {type(wrong).__name__}; allowed: a bytes-like object"
            with pytest.raises(TypeError, match=named):
                call(wrong)


def test_messages_meet_by_their_tag(pair):
    a, b, to_b, to_a = pair
    target = [bytearray(3), bytearray(4)]
    regions = b.register(target)
    received = b.receive(to_a, 7, regions)
    sent = a.send(to_b, 7, a.register(b"message", access="local"))
    assert sent.wait(SOON).nbytes == received.wait(SOON).nbytes == 7
    assert target == [b"mes", b"sage"]


def test_a_prepared_write_is_posted_often_with_a_notification_each(pair):
    a, b, to_b, _ = pair
    target = bytearray(8)
    there = b.register(target)
    here = bytearray(8)
    prepared = a.prepare_write(to_b, a.register(here), a.import_region(there.describe()))
    assert (prepared.nbytes, prepared.segments) == (8, 1) and "tcp" in prepared.path.lower()
    for step in range(3):
        here[:] = step.to_bytes(8, "little")
        prepared.post(notification=here).wait(SOON)
        assert b.wait_notification(SOON).data == here == target
    read = a.prepare_read(to_b, a.register(here), a.import_region(there.describe()))
    with pytest.raises(polyrail.PostError) as refused:
        read.post(notification=b"x")
    assert refused.value.reason == "no_notification"


def test_a_transfer_that_goes_on_can_be_waited_for_again_and_cancelled(pair):
    a, _, to_b, _ = pair
    receive = a.receive(to_b, 1, a.register(bytearray(8)))
    assert not receive.done() and receive.outcome() is None
    assert repr(receive) == "Transfer(under way, 0 bytes done)"
    with pytest.raises(TimeoutError, match="goes on"):
        receive.wait(0.01)
    receive.cancel()
    with pytest.raises(polyrail.Cancelled) as cancelled:
        receive.wait(SOON)
    assert cancelled.value.reason == "cancelled" and receive.done()
    assert repr(receive) == f"Transfer(failed: {cancelled.value})"


def test_a_deadline_is_a_timeout_and_names_the_peer(pair):
    a, _, to_b, _ = pair
    with pytest.raises(TimeoutError) as late:
        a.receive(to_b, 1, a.register(bytearray(8)), timeout=0.05).wait(SOON)
    assert isinstance(late.value, polyrail.DeadlineExceeded)
    assert (late.value.reason, late.value.peer) == ("deadline", "b")


def test_a_lost_peer_is_named_with_the_reason(pair):
    a, b, to_b, _ = pair
    receive = a.receive(to_b, 1, a.register(bytearray(8)))
    a.notify(to_b, b"hello").wait(SOON)
    b.close()
    with pytest.raises(polyrail.PeerLost) as lost:
        receive.wait(SOON)
    assert (lost.value.reason, lost.value.peer) == ("peer_lost", "b") and lost.value.why
    assert to_b.lost
    with pytest.raises(polyrail.PostError) as gone:
        a.notify(to_b, b"hello")
    assert gone.value.reason == "peer_gone"
    copy = pickle.loads(pickle.dumps(lost.value))
    assert (str(copy), copy.reason, copy.peer) == (str(lost.value), "peer_lost", "b")


def test_access_and_grants_hold(pair):
    a, b, to_b, to_a = pair
    local = a.register(bytearray(8))

    def read(**options):
        region = b.register(bytearray(8), **options)
        return a.read(to_b, local, a.import_region(region.describe())).wait(SOON)

    assert read(access="read").nbytes == 8
    assert read(granted_to=[to_a]).nbytes == read(granted_to=[a.instance]).nbytes == 8
    for options in [{"access": "write"}, {"access": "local"}, {"granted_to": []}]:
        with pytest.raises(polyrail.Refused) as refused:
            read(**options)
        assert refused.value.why == "access_denied"
    with pytest.raises(ValueError, match='access is "none"; allowed: "all"'):
        b.register(bytearray(8), access="none")


CONNECTS = """
import sys, polyrail
with polyrail.Engine(rails="127.0.0.1", env=False) as engine:
    print(engine.connect(sys.argv[1], timeout=30).name)
"""


def test_of_a_name_with_several_addresses_the_one_that_answers_counts(pair, tmp_path):
    (tmp_path / "hosts").write_text("::1 both.test\n127.0.0.1 both.test\n")
    own = ["unshare", "--user", "--map-current-user", "--keep-caps", "--mount", "sh", "-c"]
    mount = 'mount --bind "$0" /etc/hosts && exec "$@"'
    named = [*own, mount, str(tmp_path / "hosts")]
    try:
        subprocess.run([*named, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("user namespaces are not allowed, or unshare is missing")
    a = pair[0]
    port = a.addresses[0].rpartition(":")[2]
    place = f"both.test:{port}/{a.invitation()}"
    command = [*named, sys.executable, "-c", CONNECTS, place]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.stdout.strip() == "a", found.stderr


def test_peers_are_found_by_address_by_invitation_and_by_file(pair, tmp_path):
    a, b, to_b, _ = pair
    with engine("c") as c:
        assert c.connect(a.addresses[0], timeout=SOON).name == "a"
        assert c.connect(f"{b.addresses[0]}/{b.invitation()}", timeout=SOON).name == "b"
        # The others were added here, and did not come by themselves.
        assert a.accept_peer(SOON).name == "c" and a.accept_peer(0) is None
        b.publish(tmp_path / "b", b"more")
        peer, data = c.find_peer(tmp_path / "b", timeout=SOON)
        assert (peer.instance, data) == (b.instance, b"more")
        with pytest.raises(TimeoutError, match="nobody has published"):
            c.find_peer(tmp_path / "nobody", timeout=0.01)
        c.remove_peer(peer)
        assert peer.lost and peer not in c.peers()
    with pytest.raises(ValueError, match="allowed: \"HOST:PORT\""):
        a.connect("nowhere")
    with pytest.raises(polyrail.PeerError) as refused:
        a.connect("127.0.0.1:1", timeout=SOON)
    assert refused.value.reason == "connect" and refused.value.why
    with pytest.raises(polyrail.PeerError) as wrong:
        a.add_peer(b"no metadata")
    assert wrong.value.reason


def test_settings_come_from_keywords_before_the_dictionary_before_the_environment(monkeypatch):
    monkeypatch.setenv("POLYRAIL_CHUNK_BYTES", "1MiB")
    monkeypatch.setenv("POLYRAIL_RAILS", "127.0.0.1")
    with polyrail.Engine() as made:
        assert made.settings["chunk_bytes"] == 1 << 20
    with polyrail.Engine({"chunk_bytes": "2MiB", "rails": ["127.0.0.1"]}) as made:
        assert made.settings["chunk_bytes"] == 2 << 20
    with polyrail.Engine({"chunk_bytes": "2MiB"}, chunk_bytes=1 << 18) as made:
        assert made.settings["chunk_bytes"] == 1 << 18
    with pytest.raises(polyrail.EngineError, match="chunk_byte") as wrong:
        polyrail.Engine(chunk_byte=3)
    assert wrong.value.reason == "config"
    with pytest.raises(polyrail.EngineError) as rails:
        polyrail.Engine(rails="nosuch0", env=False)
    assert rails.value.reason == "rails" and "usable here" in str(rails.value)
    with pytest.raises(TypeError, match="rails is None"):
        polyrail.Engine(rails=None)


def test_counters_are_a_dictionary(pair):
    a, b, to_b, _ = pair
    a.notify(to_b, b"hello").wait(SOON)
    stats = a.stats()
    assert stats["peers"][0]["name"] == "b" and stats["ops_outstanding"] == 0
    assert "b" in a.dump() and a.drain(SOON)


def test_notifications_are_iterated_until_none_comes_or_the_engine_closes(pair):
    a, b, to_b, _ = pair
    for number in range(3):
        a.notify(to_b, bytes([number])).wait(SOON)
    assert sorted(one.data[0] for one in b.notifications(timeout=0.05)) == [0, 1, 2]
    assert b.take_notifications() == []
    closing = threading.Timer(0.05, b.close)
    closing.start()
    assert list(b.notifications()) == []
    closing.join()
    assert b.closed and b.wait_notification() is None and b.accept_peer() is None


def test_other_threads_run_while_one_waits(pair):
    a, b, to_b, to_a = pair
    heard = []
    waiting = threading.Thread(target=lambda: heard.append(b.wait_notification(SOON).data))
    waiting.start()
    # This thread posts while the other one waits, which needs the interpreter.
    a.notify(to_b, b"hello").wait(SOON)
    waiting.join(SOON)
    assert heard == [b"hello"]


def test_a_signal_ends_a_wait(pair):
    class Rung(Exception):
        pass

    def ring(*_):
        raise Rung

    a, _, to_b, _ = pair
    receive = a.receive(to_b, 1, a.register(bytearray(8)))
    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Rung):
            receive.wait()
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("seconds", [-1.0, float("nan")])
def test_a_wrong_timeout_is_refused(pair, seconds):
    a, _, to_b, _ = pair
    with pytest.raises(ValueError, match="allowed: seconds, 0 or more, or None"):
        a.wait_notification(seconds)
    with pytest.raises(ValueError, match="timeout is"):
        a.receive(to_b, 1, a.register(bytearray(8)), timeout=seconds)


def test_a_dropped_transfer_is_cancelled_and_a_detached_one_goes_on(pair):
    a, b, to_b, to_a = pair
    here, target = a.register(b"12345678", access="local"), bytearray(8)
    there = b.register(target)
    a.send(to_b, 1, here)
    kept = a.send(to_b, 2, here)
    kept.detach()
    del kept
    assert b.receive(to_a, 2, there).wait(SOON).nbytes == 8
    with pytest.raises(TimeoutError):
        b.receive(to_a, 1, there, timeout=0.2).wait(SOON)


def test_notifications_that_nobody_keeps_arrive(pair):
    a, b, to_b, _ = pair
    for number in range(100):
        a.notify(to_b, bytes([number]))
    heard = [b.wait_notification(SOON).data[0] for _ in range(100)]
    assert sorted(heard) == list(range(100))


def test_a_notification_that_nobody_keeps_ends_with_its_timeout_or_is_cancelled(pair):
    a = pair[0]
    told, tells = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("spawn").Process(target=silent, args=(tells,))
    child.start()
    try:
        assert told.poll(SOON)
        metadata = told.recv_bytes()
        # It does not answer, and is not given up yet.
        os.kill(child.pid, signal.SIGSTOP)
        # Until its threads have stopped it takes connections, and then a notification may have arrived.
        assert os.WIFSTOPPED(os.waitpid(child.pid, os.WUNTRACED)[1])
        nobody_keeps(a, a.add_peer(metadata))
    finally:
        child.kill()
        child.join()


def silent(tells):
    with engine("silent") as one:
        tells.send_bytes(one.metadata())
        signal.pause()


def nobody_keeps(a, peer):
    with pytest.raises(polyrail.DeadlineExceeded):
        a.notify(peer, b"x", timeout=0.05).wait(SOON)
    a.notify(peer, b"x", timeout=0.05)
    assert a.drain(SOON) and not peer.lost
    cancelled = a.notify(peer, b"x")
    assert not a.drain(0.01)
    cancelled.cancel()
    with pytest.raises(polyrail.Cancelled):
        cancelled.wait(SOON)


def test_an_engine_that_nobody_refers_to_closes():
    made = engine("short")
    gone = weakref.ref(made)
    with engine("other") as other:
        peer = other.add_peer(made.metadata())
        other.notify(peer, b"hello").wait(SOON)
        waiting = other.receive(peer, 1, other.register(bytearray(8)))
        del made
        gc.collect()
        assert gone() is None
        with pytest.raises(polyrail.PeerLost):
            waiting.wait(SOON)


def fork_child(made, told):
    with pytest.raises(polyrail.RegionError) as forked:
        made.register(bytearray(8))
    told.send(forked.value.reason)


def test_a_forked_copy_of_an_engine_is_refused(pair):
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=fork_child, args=(pair[0], there))
    child.start()
    assert here.poll(SOON) and here.recv() == "forked"
    child.join(SOON)
    assert child.exitcode == 0


def test_waiting_costs_no_processor_time(pair):
    a = pair[0]
    before = time.thread_time()
    assert a.wait_notification(0.3) is None
    assert time.thread_time() - before < 0.1
