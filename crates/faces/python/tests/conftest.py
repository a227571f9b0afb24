"""Engines that tests talk with. Everything runs from the installed wheel."""

import time

import polyrail
import pytest

SOON = 60.0


@pytest.fixture
def pair():
    """Two engines of this process on loopback, and each as the other one's peer."""
    with engine("a") as a, engine("b") as b:
        to_b = a.add_peer(b.metadata())
        to_a = b.add_peer(a.metadata())
        yield a, b, to_b, to_a


def engine(name, **settings):
    return polyrail.Engine(rails="127.0.0.1,127.0.0.2", name=name, env=False, **settings)


def wait_for(is_so):
    """Waits for what nobody tells of."""
    until = time.monotonic() + SOON
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.001)
