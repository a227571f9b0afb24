"""Groups: engines that find each other at the place of the setting `rendezvous`."""

import multiprocessing
import os
import threading

import polyrail
import pytest
from conftest import SOON, engine


@pytest.fixture
def place(tmp_path):
    return f"dir://{tmp_path}/engines"


def test_members_find_each_other_and_hear_who_comes_and_goes(place):
    with engine("a", rendezvous=place) as a, engine("b", rendezvous=place) as b:
        with a.join("trainers", name="one") as one:
            assert (one.name, one.members(), one.expected) == ("one", [], None)
            two = b.join("trainers")
            (member,) = one.wait_for(2, timeout=SOON)
            assert member.name == two.name == f"{b.instance >> 96:08x}" and member.addresses == b.addresses
            event = one.next_event(SOON)
            assert (event.name, event.joined) == (member.name, member) and "joined" in repr(event)
            peer = one.peer(member)
            assert one.peer(member.name) == peer
            a.notify(peer, b"hello").wait(SOON)
            assert b.wait_notification(SOON).data == b"hello"
            two.leave()
            two.leave()
            event = one.next_event(SOON)
            assert (event.name, event.joined) == (member.name, None)
            assert one.next_event(0.01) is None
            with pytest.raises(TimeoutError, match="1 of 2 members are there, and the time is over"):
                one.wait_for(2, timeout=0.01)
        assert one.next_event() is None
        with pytest.raises(TimeoutError, match="it was left"):
            one.wait_for(2)


def test_who_waits_in_a_thread_is_woken_when_the_group_is_left(place):
    with engine("a", rendezvous=place) as a:
        group = a.join("g")
        heard = []
        waits = threading.Thread(target=lambda: heard.append(group.next_event()))
        waits.start()
        group.leave()
        waits.join(SOON)
        assert heard == [None]


def test_an_engine_that_closes_leaves_its_groups(place):
    with engine("a", rendezvous=place) as a, engine("b", rendezvous=place) as b:
        one, two = a.join("g", name="one"), b.join("g", name="two")
        assert two.next_event(SOON).joined
        a.close()
        assert two.next_event(SOON).joined is None
        # What it had heard before can be taken.
        assert [event.name for event in iter(one.next_event, None)] in ([], ["two"])
        with pytest.raises(polyrail.RendezvousError, match="the engine is closed"):
            a.join("g")


def test_what_is_wrong_with_a_group_is_said(place):
    with engine("a") as a, engine("b", rendezvous=place) as b:
        with pytest.raises(polyrail.RendezvousError) as unset:
            a.join("g")
        assert unset.value.reason == "not_set" and "rendezvous=dir://" in unset.value.help
        for wrong in [{"group": "../up"}, {"group": "g", "name": ""}]:
            with pytest.raises(ValueError, match="allowed: 1 to 63 letters"):
                b.join(**wrong)
        with pytest.raises(ValueError, match="timeout is -1"):
            b.join("g", timeout=-1)
        with b.join("g", name="one") as group:
            with engine("c", rendezvous=place) as c, pytest.raises(polyrail.RendezvousError) as taken:
                c.join("g", name="one", timeout=0.1)
            assert taken.value.reason == "taken" and "a name of its own" in taken.value.help
            with pytest.raises(ValueError, match='no other member of the group is called "nobody"'):
                group.peer("nobody")
            with pytest.raises(TypeError, match="member is a int; allowed: Member"):
                group.peer(3)
            with pytest.raises(ValueError, match="count is None"):
                group.wait_for()


def test_an_etcd_that_is_down_is_named_with_a_remedy():
    with engine("a", rendezvous="etcd://127.0.0.1:1") as a:
        with pytest.raises(polyrail.RendezvousError, match="etcd://127.0.0.1:1.*no answer") as down:
            a.join("g", timeout=0.5)
    assert down.value.reason == "unreachable" and "see that it runs" in down.value.help


def leaves_it_alone(group):
    assert group.members() == [] and group.next_event() is None
    group.leave()
    os._exit(7)


def test_a_forked_process_has_no_part_in_the_group(place):
    with engine("a", rendezvous=place) as a, engine("b", rendezvous=place) as b:
        one, two = a.join("g", name="one"), b.join("g", name="two")
        one.wait_for(2, timeout=SOON)
        two.wait_for(2, timeout=SOON)
        child = multiprocessing.get_context("fork").Process(target=leaves_it_alone, args=(one,))
        child.start()
        child.join(SOON)
        assert child.exitcode == 7
        # Whoever sees who comes later would see that one has left.
        with engine("c", rendezvous=place) as c, c.join("g", name="three"):
            members = two.wait_for(3, timeout=SOON)
            assert sorted(member.name for member in members) == ["one", "three"]


def rank(number, size, place, told):
    os.environ |= {"RANK": str(number), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
    with engine("rank", rendezvous=place) as own, own.join("g") as group:
        members = group.wait_for(timeout=SOON)
        told.put((group.name, group.expected, sorted(member.name for member in members)))
        told.join()


def test_ranks_meet_as_their_launcher_says():
    from socket import create_server

    with create_server(("127.0.0.1", 0)) as free:
        place = f"torchrun://127.0.0.1:{free.getsockname()[1]}"
    context = multiprocessing.get_context("spawn")
    told = context.JoinableQueue()
    ranks = [context.Process(target=rank, args=(number, 3, place, told)) for number in range(3)]
    for one in ranks:
        one.start()
    found = sorted(told.get(timeout=SOON) for _ in ranks)
    for _ in ranks:
        told.task_done()
    for one in ranks:
        one.join(SOON)
    names = ["rank-0", "rank-1", "rank-2"]
    assert found == [(name, 3, [other for other in names if other != name]) for name in names]
    assert [one.exitcode for one in ranks] == [0, 0, 0]
