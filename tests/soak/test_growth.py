"""What grows is found, what only fills or jitters is not."""

import os
import random
import subprocess
import sys

import pytest
from soak import plan, run
from soak.growth import Sample, trend
from soak.vitals import MIB, Allowance, Limits, Vitals

RNG = random.Random(5)


def series(value, count=90):
    return [Sample(float(k), value(k)) for k in range(count)]


@pytest.mark.parametrize(
    ("value", "leaks"),
    [
        (lambda k: 100.0 + k, True),
        (lambda k: 100.0 + k + RNG.uniform(-20, 20), True),
        (lambda k: 100.0 + 8 * (k // 6), True),  # in steps, to the end
        (lambda k: 100.0 + k + (500 if k == 40 else 0), True),
        (lambda k: 100.0, False),
        (lambda k: 100.0 + RNG.uniform(-20, 20), False),
        (lambda k: 100.0 + 60 * (1 - 0.9**k), False),  # fills, and is full
        (lambda k: 100.0 + (200 if k > 30 else 0), False),  # one step
        (lambda k: 200.0 - k, False),
        (lambda k: 100.0 + k / 10, False),  # within the allowance
    ],
)
def test_trends(value, leaks):
    assert trend(series(value)).exceeds(40) == leaks


def test_too_short_a_series_has_no_trend():
    assert trend(series(lambda k: k, 5)) is None
    assert trend([Sample(1.0, k) for k in range(50)]) is None


DOUBLE = """
import os, sys, threading
kept = []
for line in sys.stdin:
    what = line.strip()
    if what == "memory":
        kept.append(bytearray(os.urandom(1)) * (1 << 20))
    elif what == "descriptors":
        kept.append(os.open("/dev/null", os.O_RDONLY))
    elif what == "threads":
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    else:
        os.close(os.open("/dev/null", os.O_RDONLY)), bytearray(1 << 20)
    print("done", flush=True)
"""


def limits(grown, daemon_bytes=256 * MIB):
    allowances = {quantity: Allowance(value, 5.0) for quantity, value in grown.items()}
    return Limits(allowances, allowances, daemon_bytes)


@pytest.mark.parametrize("leak", ["memory", "descriptors", "threads", "nothing"])
def test_a_process_that_leaks_is_found(leak):
    watch = Vitals(limits({"memory": 20.0 * MIB, "descriptors": 20.0, "threads": 20.0}))
    with subprocess.Popen([sys.executable, "-c", DOUBLE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as double:
        for second in range(40):
            double.stdin.write(leak + "\n")
            assert double.stdout.readline() == "done\n"
            watch.take(float(second), [("double", double.pid)])
        double.stdin.close()
    found = watch.faults()
    if leak == "nothing":
        assert found == []
    else:
        assert len(found) == 1 and leak in found[0], found


def test_a_daemon_that_is_too_large_is_found_at_once():
    watch = Vitals(limits({"memory": 1e12, "descriptors": 1e6, "threads": 1e6}, daemon_bytes=1 * MIB))
    with subprocess.Popen([sys.executable, "-c", DOUBLE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as double:
        double.stdin.write("memory\n")
        double.stdout.readline()
        watch.take(0.0, [("worker", double.pid)])
        double.stdin.close()
    assert "of memory of its own" in watch.faults()[0]


@pytest.mark.parametrize(("leaked", "found"), [(0, 0), (1, 1)])
def test_a_descriptor_kept_at_each_restart_of_a_peer_is_found(leaked, found):
    """By the soak's own limits: while one is spared its peer is killed some five times."""
    watch = Vitals(run.limits(run.DAEMONS_JUDGED_S))
    with subprocess.Popen([sys.executable, "-c", DOUBLE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as double:
        for at in range(0, int(plan.SPARED_S), 2):
            leaks = at % 42 == 40 and leaked
            double.stdin.write("descriptors\n" if leaks else "nothing\n")
            assert double.stdout.readline() == "done\n"
            watch.take(float(at), [("lookupd", double.pid)])
        double.stdin.close()
    faults = watch.faults()
    assert len(faults) == found and all("descriptors" in fault for fault in faults), faults


# A worker's descriptors every two seconds, from when it is judged, seen after lookupd was killed.
CONNECTING = [18] * 2 + [20] * 6 + [21] * 3 + [23] * 5 + [21] * 5 + [24] * 4


def test_connections_kept_for_the_next_calls_are_no_leak():
    line = trend([Sample(2.0 * n, float(count)) for n, count in enumerate(CONNECTING)])
    allowed = run.limits(150).daemon["descriptors"].grown
    assert line.grown > run.limits(run.DAEMONS_JUDGED_S).daemon["descriptors"].grown and not line.exceeds(allowed)
    leaking = trend([Sample(2.0 * n, 18.0 + n) for n in range(len(CONNECTING))])
    assert leaking.exceeds(allowed)


def test_who_was_not_seen_long_enough():
    watch = Vitals(limits({"memory": 1e12, "descriptors": 1e6, "threads": 1e6}))
    for at in range(20):
        watch.take(float(at), [("engine", os.getpid())] + ([("worker", os.getpid())] if at > 10 else []))
    assert watch.unjudged(["engine", "worker", "lookupd"]) == ["worker", "lookupd"]


def test_a_life_between_two_strikes_is_judged_as_a_short_leg_is():
    """It shows one warm-up, where a daemon that is spared shows some: what that keeps is a leak."""
    long, short = run.limits(run.DAEMONS_JUDGED_S), run.limits(180)
    for quantity in ("memory", "descriptors", "threads"):
        assert long.of("worker", quantity, 50.0) == short.of("worker", quantity, 50.0)
        assert long.of("engine", quantity, 50.0) == long.of("engine", quantity)
    assert long.of("worker", "descriptors", 150.0).grown < short.of("worker", "descriptors", 150.0).grown


def test_a_daemon_is_judged_when_it_was_seen_for_several_lives_of_its_peer():
    watch = Vitals(run.limits(run.DAEMONS_JUDGED_S))
    for at in range(0, 140, 2):
        watch.take(float(at), [("worker", os.getpid())])
    assert watch.unjudged(["worker"]) == ["worker"]
    for at in range(140, 160, 2):
        watch.take(float(at), [("worker", os.getpid())])
    assert watch.unjudged(["worker"]) == []


# A daemon's threads every two seconds, as the runtime may bring them beside other work on the same cores.
BUSY = [9] * 4 + [10] * 5 + [11] * 3 + [12] * 6 + [13] * 7


def test_threads_that_a_busy_machine_brings_are_no_leak():
    line = trend([Sample(2.0 * n, float(count)) for n, count in enumerate(BUSY)])
    allowed = run.limits(180).daemon["threads"].grown
    assert line.grown > run.limits(run.DAEMONS_JUDGED_S).daemon["threads"].grown and not line.exceeds(allowed)
    assert trend([Sample(2.0 * n, 9.0 + n) for n in range(len(BUSY))]).exceeds(allowed)


def test_stores_are_counted_once_each():
    watch, mine = Vitals(limits({"memory": 1e12, "descriptors": 1e6, "threads": 1e6})), [("engine", os.getpid()), ("worker", os.getpid())]
    watch.take(0.0, mine)
    assert watch.stores() == 0
    kept = [os.memfd_create(name) for name in ("mooncake-store", "mooncake-store", "other")]
    try:
        kept.append(os.dup(kept[0]))
        watch.take(1.0, mine)
        assert watch.stores() == 2
    finally:
        for fd in kept:
            os.close(fd)


def test_a_store_that_is_let_go_late_is_no_fault(monkeypatch):
    """What held it hears of its daemon's death in its own time."""
    monkeypatch.setattr(run, "SAMPLE_EVERY_S", 0.0)
    watch, leg = Vitals(run.limits(180)), plan.leg(1, "sliding", False, True, 180)
    kept = [os.memfd_create("mooncake-store") for _ in range(2)]

    def processes():
        if len(seen) == 3:
            os.close(kept.pop())
        seen.append(len(kept))
        return [("worker", os.getpid())]

    try:
        seen = []
        assert run._shared(leg, watch, 90.0, processes) == [] and seen == [2, 2, 2, 1]
        kept.append(os.memfd_create("mooncake-store"))
        seen = [0] * 4
        assert len(run._shared(leg, watch, 90.0, processes, limit_s=0.0)) == 1
    finally:
        for fd in kept:
            os.close(fd)
