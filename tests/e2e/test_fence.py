"""Is it the fence that keeps late copies out of other requests' blocks? With the cancel word ignored, they get in.

A load is under way, slowed down, when its client goes away. Its deadline passes, it is cancelled, and other requests take
the blocks. A daemon that honours the cancel touches none of them after its acknowledgement. The broken build acknowledges,
and goes on writing.
"""

import time

import pytest

from harness.byhand import ByHand
from harness.cell import Cell
from harness.client import PATIENCE_S
from harness.compare import wrong
from harness.daemons import LOOKUPD, WORKER
from harness.engine import REPOSITORY
from harness.segment import Segment
from harness.storm import Abandoned, wait_load_in_flight

# What a load sleeps before each of its three pieces, by round. With the cancel word ignored the later pieces must come when the others
# have computed what they overwrite and still read it; when that is, is the machine's business.
DELAYS_MS = {False: (500,) * 5, True: (500, 1000, 2000, 4000, 250)}
FAULTS = "build/faults"


@pytest.fixture(scope="module")
def late(model):
    """Nobody kills these daemons for what they leave undone: they are not the engine's."""
    extra = {"load_timeout_s": 0.2, "store_timeout_s": 60, "autostart": False}
    options = {"blocks": 64, "arguments": ["--max-model-len", "6144"]}
    with Cell(model, "late", binaries=FAULTS, extra=extra, **options) as cell:
        cell.by_hand = ByHand(cell.daemons, REPOSITORY / FAULTS, "1GiB").start_all()
        yield cell.start()


def begin_again(cell, faults, cut):
    """Another worker takes the place of the running one; returns once the engine's blocks are stored by it."""
    cell.by_hand.environment["MOONCAKE_SIDECAR_FAULTS"] = faults
    cell.daemons.kill(WORKER)
    cell.by_hand.reap()
    cell.by_hand.start(WORKER)
    with Segment(cell.daemons.wait(LOOKUPD)) as segment:
        before, deadline = len(segment.chunks()), time.monotonic() + PATIENCE_S
        while len(segment.chunks()) == before:
            assert time.monotonic() < deadline, "nothing is stored\n" + cell.daemons.logs()
            cell.client.complete(cut.fresh(200), 1)
            cell.forget()


def wrong_outputs(cell, cut, reference, noise):
    """Runs the scene once; returns what was wrong."""
    victim, others = cut.fresh(5600), [cut.fresh(1450) for _ in range(4)]
    right = reference(others, 120, at_once=4)
    cell.client.complete(victim, 1)
    cell.forget()
    abandoned = [Abandoned(cell, victim)]
    wait_load_in_flight(cell, lambda: abandoned.append(Abandoned(cell, victim)))
    abandoned[-1].abort()
    got = cell.client.complete_many(others, 120)
    cell.forget()
    return [fault for want, have in zip(right, got) if (fault := wrong(want, have, noise))]


@pytest.mark.parametrize("ignore_cancel", [False, True], ids=["fence", "cancel-ignored"])
def test_late_copies(late, cut, reference, noise, ignore_cancel):
    seen, now = [], None
    for delay in DELAYS_MS[ignore_cancel]:
        if delay != now:
            begin_again(late, f"copy_delay={delay}ms" + (",ignore_cancel=1" if ignore_cancel else ""), cut)
        now = delay
        if seen := wrong_outputs(late, cut, reference, noise):
            break
    if ignore_cancel:
        assert seen, "copies after the acknowledgement went unseen: the safety tests could not fail"
    else:
        assert not seen, "\n".join(seen)
