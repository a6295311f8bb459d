"""A reset counts when it has done what it is there for, and a strike at a worker meets a load."""

import subprocess
import types

import pytest
from harness.client import ApiError, Metrics
from soak import events
from soak.events import REFUSED, Events
from soak.gate import Gate
from soak.plan import Reset, Strike
from soak.tally import Tally


class Client:
    """An engine: its metrics page by page, the last one for ever, and what it answers to a reset."""

    def __init__(self, pages, answer):
        self._pages, self._answer = list(pages), answer
        self.resets = 0

    def metrics(self):
        running, preempted = self._pages.pop(0) if len(self._pages) > 1 else self._pages[0]
        return Metrics(f"vllm:num_requests_running {running}\nvllm:num_preemptions_total {preempted}\n")

    def call(self, *_):
        self.resets += 1
        if self._answer is not None:
            raise self._answer
        return '{"success": true}'


IDLE, BUSY, PREEMPTED = (0, 5), (3, 5), (3, 6)


@pytest.mark.parametrize(
    ("pages", "answer", "counts", "resets"),
    [
        ((BUSY, PREEMPTED), None, {"reset preempting": 1}, 1),
        ((BUSY, BUSY, BUSY, PREEMPTED), None, {"reset preempting": 1}, 1),  # counted with the next output
        ((IDLE, IDLE, BUSY, PREEMPTED), None, {"reset preempting": 1}, 1),
        ((BUSY, PREEMPTED), ApiError(500, REFUSED + " and moved"), {"reset preempting": 1, "refused emptying": 1}, 1),
        ((IDLE,), None, {"refused preempting": 1}, 0),
        ((BUSY, BUSY), None, {"refused preempting": 1}, 1),
        ((BUSY, PREEMPTED), ApiError(500, "the engine is dead"), {"faults": 1}, 1),
        ((BUSY, PREEMPTED), ApiError(404, "no such page"), {"faults": 1}, 1),
    ],
)
def test_a_reset_that_preempts(pages, answer, counts, resets, monkeypatch):
    if "refused preempting" in counts:  # what never comes need not be waited for
        monkeypatch.setattr(events, "PREEMPTING_FOR_S", 0.5)
        monkeypatch.setattr(events, "COUNTED_WITHIN_S", 0.5)
    tally, client = Tally(), Client(pages, answer)
    carried = Events(types.SimpleNamespace(client=client), (), (Reset(0.0, "preempting"),), tally, Gate())
    carried._follow((Reset(0.0, "preempting"),), carried._reset)
    assert tally.summary()["counts"] == counts
    assert client.resets == resets


@pytest.mark.parametrize(
    ("daemon", "reads", "asked"),
    [
        ("worker", [OSError(), 0, 0, 3, 0], 4),
        ("worker", [0], None),  # no load comes, and the worker is struck all the same
        ("lookupd", [0], 0),
    ],
)
def test_a_strike_at_a_worker_waits_for_a_load(daemon, reads, asked, monkeypatch):
    if asked is None:
        monkeypatch.setattr(events, "LOAD_WITHIN_S", 0.2)
    seen = []

    def page(*_):
        assert victim.poll() is None
        seen.append(reads.pop(0) if len(reads) > 1 else reads[0])
        if isinstance(seen[-1], OSError):
            raise seen[-1]
        return Metrics(f"mooncake_sidecar_store_open_reads {seen[-1]}\n")

    monkeypatch.setattr(events.remains, "daemon_metrics", page)
    tally, strike = Tally(), Strike(0.0, daemon, "kill")
    with subprocess.Popen(["sleep", "1000"]) as victim:
        cell = types.SimpleNamespace(daemons=types.SimpleNamespace(wait=lambda name, limit_s: victim.pid))
        carried = Events(cell, (strike,), (), tally, Gate())
        carried._follow((strike,), carried._strike)
        assert victim.wait() == -9
    assert tally.summary()["counts"] == {f"kill {daemon}": 1}
    assert len(seen) == asked if asked is not None else seen
