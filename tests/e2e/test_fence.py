"""Is it the fence that keeps late copies out of other requests' blocks? With the cancel word ignored, they get in.

A load is under way, slowed down, when its client goes away. Its deadline passes, it is cancelled, and other requests take
the blocks. A daemon that honours the cancel touches none of them after its acknowledgement. The broken build acknowledges,
and goes on writing.
"""

import pytest

from harness.byhand import ByHand
from harness.cell import Cell
from harness.compare import wrong
from harness.daemons import LOOKUPD, WORKER
from harness.engine import REPOSITORY
from harness.segment import Segment
from harness.storm import Abandoned, wait_load_in_flight

ROUNDS = 5
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
        before, tries = len(segment.chunks()), 0
        while len(segment.chunks()) == before:
            assert (tries := tries + 1) <= 100, "nothing is stored\n" + cell.daemons.logs()
            cell.client.complete(cut.fresh(200), 1)
            cell.forget()


def wrong_outputs(cell, cut, reference, noise, rounds):
    """Runs rounds of the scene; returns what was wrong, stopping at the first round that shows something."""
    for _ in range(rounds):
        victim, others = cut.fresh(5600), [cut.fresh(1450) for _ in range(4)]
        right = reference(others, 120, at_once=4)
        cell.client.complete(victim, 1)
        cell.forget()
        abandoned = [Abandoned(cell, victim)]
        wait_load_in_flight(cell, lambda: abandoned.append(Abandoned(cell, victim)))
        abandoned[-1].abort()
        got = cell.client.complete_many(others, 120)
        faults = [fault for want, have in zip(right, got) if (fault := wrong(want, have, noise))]
        cell.settle()
        cell.client.reset_prefix_cache()
        if faults:
            return faults
    return []


@pytest.mark.parametrize("ignore_cancel", [False, True], ids=["fence", "cancel-ignored"])
def test_late_copies(late, cut, reference, noise, ignore_cancel):
    begin_again(late, "copy_delay=500ms" + (",ignore_cancel=1" if ignore_cancel else ""), cut)
    seen = wrong_outputs(late, cut, reference, noise, ROUNDS)
    if ignore_cancel:
        assert seen, "copies after the acknowledgement went unseen: the safety tests could not fail"
    else:
        assert not seen, "\n".join(seen)
