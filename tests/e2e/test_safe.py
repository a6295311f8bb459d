"""A daemon is killed, or stopped and continued, while lookups, loads and stores are under way, and other requests take blocks.

Every request must finish with right tokens, no block may stay held, and the cache must serve again without the engine's help.
The daemons are builds whose copies are slowed down, so that "during a load" is a state that the test can wait for.
"""

import os
import time

import pytest

from harness.byhand import ByHand
from harness.cell import Cell, whole
from harness.daemons import LOOKUPD, WORKER
from harness.engine import REPOSITORY
from harness.storm import Storm, step_load_in_flight, store_in_flight, wait_load_in_flight

FAULTS = "build/faults"
# One batch of copies is at most 16 blocks here, so that a load of 3,000 tokens takes about half a second.
SLOW = {"MOONCAKE_SIDECAR_FAULTS": "copy_delay=250ms"}
SMALL = {"blocks": 120, "arguments": ["--max-model-len", "8192"]}
DEADLINES = {"lookup_timeout_ms": 1000, "load_timeout_s": 1, "store_timeout_s": 2, "fence_kill_after_s": 1}


@pytest.fixture(scope="module")
def supervised(model):
    """Daemons of a service manager: the shim may not kill them, so their late awakening is the fence's business."""
    with Cell(model, "hand", environment=SLOW, binaries=FAULTS, extra=DEADLINES | {"autostart": False}, **SMALL) as cell:
        cell.by_hand = ByHand(cell.daemons, REPOSITORY / FAULTS, "512MiB", SLOW).start_all()
        yield cell.start()


@pytest.fixture(scope="module")
def autostarted(model):
    """Daemons that the shim started: it may kill and replace them. Loads run beside the engine's steps."""
    with Cell(model, "auto", environment=SLOW, binaries=FAULTS, extra=DEADLINES | {"load_async": True}, **SMALL) as cell:
        yield cell.start()


@pytest.fixture(scope="module")
def in_step(model):
    """Of such daemons a load into an engine at rest is part of its step."""
    with Cell(model, "step", environment=SLOW, binaries=FAULTS, extra=DEADLINES, **SMALL) as cell:
        yield cell.start()


def strike(cell, storm, cut, daemon, phase, fault):
    """Brings the cell into the phase, lets the fault happen with more requests arriving meanwhile; returns with all sent."""
    main, others = cut.fresh(3000), [cut.fresh(1100) for _ in range(5)]
    storm.expect([main], 16)
    storm.expect(others, 40)
    if phase != "store":
        cell.client.complete(main, 1)
        cell.forget()
    if phase == "lookup":
        with cell.daemons.stopped(daemon):
            storm.send([main], 16)
            storm.send(others, 40)
            fault(cell, daemon)
        return
    if phase == "load":
        storm.send([main], 16)
        wait_load_in_flight(cell, lambda: storm.send([main], 16))
    elif phase == "step":
        step_load_in_flight(cell, lambda: storm.send([main], 16))
    else:
        store_in_flight(cell, main)
        storm.send([main], 16)
    with cell.daemons.stopped(daemon):
        storm.send(others, 40)
        fault(cell, daemon)


def kill(cell, daemon):
    cell.daemons.kill(daemon)
    if hasattr(cell, "by_hand"):
        cell.by_hand.reap()


def stay_stopped(seconds):
    return lambda cell, daemon: time.sleep(seconds)


def long_stop(phase):
    """Seconds that are beyond all deadlines: many times, which takes as long as it says, while loads are under way, else some times."""
    return 30 if phase == "load" or os.environ.get("MOONCAKE_SIDECAR_NIGHTLY") else 8


def strike_its_own(cell, cut, reference, noise, daemon, phase, fault):
    """Strikes a daemon that the shim started, and replaces."""
    with Storm(cell, reference, noise) as storm:
        strike(cell, storm, cut, daemon, phase, kill if fault == "kill" else stay_stopped(4))
        assert storm.check() >= 6
    cell.settle()
    cell.wait_serving(cut)


@pytest.mark.parametrize("phase", ["lookup", "load", "store"])
@pytest.mark.parametrize("daemon", [LOOKUPD, WORKER])
@pytest.mark.parametrize("fault", ["stop", "kill"])
def test_supervised(supervised, cut, reference, noise, daemon, phase, fault):
    with Storm(supervised, reference, noise) as storm:
        strike(supervised, storm, cut, daemon, phase, kill if fault == "kill" else stay_stopped(long_stop(phase)))
        if fault == "kill":
            supervised.by_hand.start(daemon)
        assert storm.check() >= 6
    supervised.settle()
    supervised.wait_serving(cut)


@pytest.mark.parametrize("daemon", [LOOKUPD, WORKER])
@pytest.mark.parametrize("fault", ["stop", "kill"])
def test_autostarted(autostarted, cut, reference, noise, daemon, fault):
    strike_its_own(autostarted, cut, reference, noise, daemon, "load", fault)


@pytest.mark.parametrize("daemon", [LOOKUPD, WORKER])
@pytest.mark.parametrize("fault", ["stop", "kill"])
def test_in_a_step(in_step, cut, reference, noise, daemon, fault):
    strike_its_own(in_step, cut, reference, noise, daemon, "step", fault)


def test_a_killed_lookupd_keeps_the_cache(autostarted, cut, reference, noise):
    prompt = cut.fresh(2000)
    right = reference([prompt])
    autostarted.wait_stored(lambda: prompt)
    killed = autostarted.daemons.kill(LOOKUPD)
    autostarted.daemons.wait(LOOKUPD, other_than=killed)
    autostarted.wait_serving(cut)
    autostarted.forget()
    got, tokens = autostarted.loaded(prompt)
    assert tokens == whole(prompt)
    assert got.tokens == right[0].tokens
