"""The comparison can fail: each of these faults, put into our scheduler role, is found by it.

Without this a comparison that compares nothing would pass.
"""

from types import SimpleNamespace
from unittest.mock import patch

import pytest

pytest.importorskip("vllm")

import mooncake_sidecar.tails as tails
from engine import write_model
from mooncake_sidecar.batch import StoreBatch
from mooncake_sidecar.pins import PinLedger
from mooncake_sidecar.saving import Saver
from mooncake_sidecar.scheduler import SchedulerRole
from mooncake_sidecar.tables import Span
from mooncake_sidecar.tails import TailPlanner
from mooncake_sidecar.tracker import Tracker

from . import pair
from .test_same_steps import run

# A fault is to be found within so many cases: every model comes three times.
CASES = 33


def _planned(change):
    """``Tracker.plan_save`` with its answer changed: (tracker, block, plan) -> plan."""
    real = Tracker.plan_save

    def plan_save(self, block_tokens, *rest):
        return change(self, block_tokens, real(self, block_tokens, *rest))

    return patch.object(Tracker, "plan_save", plan_save)


def _saves_early(tracker, block, plan):
    return (plan[0] + block, plan[1]) if plan and plan[0] else plan


def _saves_short(tracker, block, plan):
    return (max(0, plan[0] - block), plan[1]) if plan else plan


def _saves_again(tracker, block, plan):
    tracker.saved = max(0, tracker.saved - block)
    return plan


def _no_tail(tracker, block, plan):
    return (plan[0], False) if plan else plan


def _tail_again(tracker, block, plan):
    tracker.tail_sent = False
    return plan


def _acknowledged(change):
    real = PinLedger.acknowledge

    def acknowledge(self, job, ranks=1, lost=()):
        real(self, job, *change(ranks, lost))

    return patch.object(PinLedger, "acknowledge", acknowledge)


def _taken(change):
    """``PinLedger.take`` with its arguments changed: (spans, extra) -> (spans, extra)."""
    real = PinLedger.take

    def take(self, pins, job, spans, extra=(), token_len=0):
        real(self, pins, job, *change(spans, extra), token_len)

    return patch.object(PinLedger, "take", take)


def _added(change):
    """``StoreBatch.add`` with its arguments changed: (first hash, hashes, tables) -> the same."""
    real = StoreBatch.add

    def add(self, request_id, tokens, most, label, first_hash, hashes, tables, puts):
        real(self, request_id, tokens, most, label, *change(first_hash, hashes, tables), puts)

    return patch.object(StoreBatch, "add", add)


def _never_frees():
    return patch.object(PinLedger, "_free", lambda self, blocks: None)


def _puts(change):
    real = TailPlanner.puts

    def puts(self, *arguments):
        return change(real(self, *arguments))

    return patch.object(TailPlanner, "puts", puts)


def _hit_without_tails():
    real = pair.Hit
    return patch.object(pair, "Hit", lambda tokens, found=(): real(tokens))


def _loads_what_is_there():
    """The load job says that nothing is in the engine."""
    real = SchedulerRole.allocated

    def allocated(self, request, blocks, external_tokens):
        real(self, request, blocks, external_tokens)
        if (plan := self._entries[request.request_id].load) is not None:
            plan.local_tokens = 0

    return patch.object(SchedulerRole, "allocated", allocated)


def _preempted_goes_on():
    """A preempted request keeps what it has saved."""
    real = SchedulerRole.commands

    def commands(self, output):
        kept = {r: e.tracker for r in output.preempted_req_ids or () if (e := self._entries.get(r)) is not None}
        step = real(self, output)
        for request, tracker in kept.items():
            if (entry := self._entries.get(request)) is not None and entry.tracker is not None and tracker is not None:
                entry.tracker.saved = max(tracker.saved, entry.tracker.saved)
        return step

    return patch.object(SchedulerRole, "commands", commands)


def _outdated_is_saved():
    """A load of before a reset begins a run like any other."""
    real = Saver.begin

    def begin(self, entry, computed, prefill_end):
        entry.outdated = False
        real(self, entry, computed, prefill_end)

    return patch.object(Saver, "begin", begin)


FAULTS = {
    "a boundary before it is computed": lambda: _planned(_saves_early),
    "the last block of a boundary is left out": lambda: _planned(_saves_short),
    "a boundary is saved twice": lambda: _planned(_saves_again),
    "the prompt's tail is not saved": lambda: _planned(_no_tail),
    "the prompt's tail is saved at every boundary": lambda: _planned(_tail_again),
    "the checkpoint is that without drafter": lambda: patch.object(
        tails, "checkpoint", lambda prompt, unit, eagle: max(0, (prompt - 1) // unit * unit)
    ),
    "no margin for a drafter's proof": lambda: patch.object(tails, "proof_margins", lambda geometry: {}),
    "a tail without its first block": lambda: _puts(lambda puts: puts[1:]),
    "a tail's last block is keyed too early": lambda: _puts(lambda puts: [(g, b, t - t % 8) for g, b, t in puts]),
    "blocks go with the first rank's report": lambda: _acknowledged(lambda ranks, lost: (99, lost)),
    "a failed save counts as saved": lambda: _acknowledged(lambda ranks, lost: (ranks, ())),
    "a failed part is taken for its neighbour": lambda: _acknowledged(lambda ranks, lost: (ranks, [p + 1 for p in lost])),
    "a part's first hash is left out": lambda: _added(lambda first, hashes, tables: (first, hashes[1:], tables)),
    "a part's first block is left out": lambda: _added(
        lambda first, hashes, tables: (first, hashes, [(begin + 1, ids[4:]) for begin, ids in tables])
    ),
    "blocks are never given back": _never_frees,
    "a tail's blocks are not held": lambda: _taken(lambda spans, extra: (spans, ())),
    "the last block of each table is not held": lambda: _taken(
        lambda spans, extra: (spans and [Span(span.first, span.blocks[:-1]) for span in spans], extra)
    ),
    "what runs at a reset is saved on": lambda: patch.object(Saver, "end", lambda self, entry: None),
    "what loads at a reset is saved": _outdated_is_saved,
    "a load without the tails' keys": _hit_without_tails,
    "a load that says nothing is there": _loads_what_is_there,
    "a resumed request counts as saved": _preempted_goes_on,
    "a tail that ends with its request is forgotten": lambda: patch.object(
        SchedulerRole, "finished_tail", lambda *_: False
    ),
    "the engine may sleep with jobs outstanding": lambda: patch.object(SchedulerRole, "pending", False),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return SimpleNamespace(path=write_model(tmp_path_factory.mktemp("model")))


@pytest.mark.parametrize("fault", FAULTS)
def test_is_found(fault, model, runtime_dir):
    with FAULTS[fault](), pytest.raises((AssertionError, IndexError, ValueError)):
        for seed in range(1, CASES + 1):
            run(model.path, runtime_dir, seed)
