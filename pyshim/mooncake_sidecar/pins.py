"""Holding blocks while a store job may read them.

A store job outlives the step that made it, and may outlive its request. Each
block it may read carries one reference of the connector's from the first such
job until every rank has acknowledged the last one.

What every rank has saved need not be read again: later jobs of the request name,
and hold, only what lies behind. So a job costs what is new in it, however long
the request is, and a preempted request gives its blocks back.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from mooncake_sidecar.jobs import ALL_PARTS

NULL_BLOCK = 0


class PinSet:
    """The blocks held for one run of a request (from its start or resumption).

    INVARIANT: every block in ``held`` or ``leaving`` carries exactly one
    reference for each time it stands there; without outstanding jobs both are empty.
    """

    __slots__ = ("held", "jobs", "leaving", "saved", "tables")

    def __init__(self) -> None:
        self.jobs: dict[int, None] = {}
        """Outstanding jobs, oldest first."""
        self.tables: list[Sequence[int]] = []
        """The block tables at the last job, by store group."""
        self.held: dict[int, None] = {}
        self.leaving: deque[tuple[int, list[int]]] = deque()
        """(last job that may read them, blocks) that have left the table since."""
        self.saved = (0, 0)
        """(era, tokens) that every rank has saved without a hole."""


@dataclass(slots=True)
class _Taken:
    """A job that some rank has not acknowledged."""

    ranks: int
    parts: list[tuple[PinSet, tuple[int, int]]] = field(default_factory=list)
    """By part: the run, and (era, tokens) that it will have saved."""
    lost: set[int] = field(default_factory=set)
    """Parts that some rank has not saved."""


class PinLedger:
    """All references that jobs hold. Used by the scheduler's thread only."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._pool: Any = None
        self._jobs: dict[int, _Taken] = {}
        self._era = 0

    def bind(self, pool: Any) -> None:
        """Set vLLM's block pool, before the first job."""
        self._pool = pool

    def __len__(self) -> int:
        """Jobs that some rank has not acknowledged."""
        return len(self._jobs)

    def saved(self, pins: PinSet) -> int:
        """Tokens of the run that need not be offered again."""
        era, tokens = pins.saved
        return tokens if era == self._era else 0

    def new_era(self) -> None:
        """A rank has lost or changed its daemon: what was saved is to be offered again."""
        self._era += 1

    def take(
        self, pins: PinSet, job: int, tables: Sequence[Sequence[int]], extra: Iterable[int] = (), token_len: int = 0
    ) -> None:
        """Hold, for the next part of ``job``, every non-null block of ``tables`` and ``extra``.

        ``token_len`` is what the run will have saved if every rank does all of the job.

        Cost is that of the blocks that are new since the request's last
        outstanding job, as long as tables only grow.
        """
        if pins.jobs:
            fresh = self._grown(pins, tables)
            if fresh is None:
                fresh = self._changed(pins, tables)
            held = pins.held
            new = {block: None for block in chain(fresh, extra) if block not in held}
        else:
            new = dict.fromkeys(chain(chain.from_iterable(tables), extra))
        pins.tables = tables
        pins.jobs[job] = None
        taken = self._jobs.get(job)
        if taken is None:
            taken = self._jobs[job] = _Taken(self._ranks)
        taken.parts.append((pins, (self._era, token_len)))
        new.pop(NULL_BLOCK, None)
        if new:
            pins.held.update(new)
            blocks = self._pool.blocks
            self._pool.touch([blocks[block] for block in new])

    def acknowledge(self, job: int, ranks: int = 1, lost: Iterable[int] = ()) -> None:
        """``ranks`` more ranks are through with the job, and have saved all but the parts in ``lost``.

        An unknown job is ignored.
        """
        taken = self._jobs.get(job)
        if taken is None:
            return
        taken.lost.update(lost)
        taken.ranks -= ranks
        if taken.ranks > 0:
            return
        del self._jobs[job]
        every = ALL_PARTS in taken.lost
        gone: list[int] = []
        for part, (pins, reached) in enumerate(taken.parts):
            if not every and part not in taken.lost:
                pins.saved = max(pins.saved, reached)
            self._let_go(pins, job, gone)
        if gone:
            self._free(gone)

    def drop(self, job: int) -> None:
        """The job is not sent."""
        self.acknowledge(job, self._ranks, (ALL_PARTS,))

    def _let_go(self, pins: PinSet, job: int, gone: list[int]) -> None:
        """The run's job is over: what no other holds is added to ``gone``.

        Last first, as vLLM frees: the shared beginning of a prefix is to be evicted last.
        """
        pins.jobs.pop(job, None)
        oldest = next(iter(pins.jobs), None)
        while pins.leaving and (oldest is None or pins.leaving[0][0] < oldest):
            gone += reversed(pins.leaving.popleft()[1])
        if oldest is None:
            gone += reversed(pins.held)
            pins.held.clear()
            pins.tables = []

    def _grown(self, pins: PinSet, tables: Sequence[Sequence[int]]) -> list[int] | None:
        """The new ends of the tables, None if they changed otherwise."""
        fresh: list[int] = []
        for before, now in zip(pins.tables, tables, strict=True):
            if now[: len(before)] != before:
                return None
            fresh += now[len(before) :]
        return fresh

    def _changed(self, pins: PinSet, tables: Sequence[Sequence[int]]) -> list[int]:
        """Tables lost blocks (a window moved on, a block was copied): let those go with their last job."""
        current = dict.fromkeys(chain.from_iterable(tables))
        gone = [block for block in pins.held if block not in current]
        if gone:
            for block in gone:
                del pins.held[block]
            pins.leaving.append((next(reversed(pins.jobs)), gone))
        return list(current)

    def _free(self, blocks: list[int]) -> None:
        """Give references back. A block that several runs held stands there as often."""
        every = self._pool.blocks
        self._pool.free_blocks([every[block] for block in blocks])
