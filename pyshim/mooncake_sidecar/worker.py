"""The worker role: passes jobs to mooncake-worker and reports what became of them.

The hooks run on vLLM's worker thread: they send what the socket takes, read what
it holds, and enforce deadlines. They wait in two cases only, where nothing runs
in the engine: briefly, for a load, whose end the engine sees a step sooner this way;
and for the end of a synchronous one, see ``syncloads``. Sessions are made and
remade by a background thread (``maintainer``).
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mooncake_sidecar import messages as msg
from mooncake_sidecar.gpuevents import EventRing, Mark, Marks
from mooncake_sidecar.ids import wire_id
from mooncake_sidecar.jobs import ALL_PARTS, JobCommand, Report, StepCommands, block_ids
from mooncake_sidecar.link import Link, Outcome, wait_readable

logger = logging.getLogger("vllm.mooncake_sidecar.worker")

# About what an empty step takes, with the millisecond that vLLM's core sleeps after it
# (``EngineCoreProc._process_engine_step``, 0.32.0): so long a new request would wait anyway.
IDLE_WAIT_S = 0.002
# Of a load that takes long each wait is an eighth of what it has taken, four times the first at most, and as much at once
# when it comes from below the node's memory: a cluster needs the cores that the steps between two waits take, and a
# request that comes meanwhile waits for the wait's end.
IDLE_GROWS_S, IDLE_GROWS_TO = 8 * IDLE_WAIT_S, 4
# Of an engine on the CPU it is so many times the first, at once, but for loads from below: the copies need the cores that
# the steps between two waits take (508 MB came in 38 ms with seven such steps, in 31 with none), and its other steps take
# longer than that.
IDLE_ON_CPU = 16
# How long a synchronous load may take before it is cancelled: 512 MiB from memory take a hundredth of it, but others may
# be on their way. With ``fence_kill_after_s`` the time for which a daemon that does not answer can hold up an engine, but
# for one that the kernel can't end: it is waited for, as somebody else's is.
SYNC_PATIENCE_S = 2.0
_NO_END_S = 10.0
# The end of a process does not wake who waits for its socket alone.
_LEAVE_LOOK_S = 0.05


@dataclass
class Transfers:
    """What one step's poll found."""

    received: set[str] = field(default_factory=set)
    """Requests whose load is over, well or not; each exactly once a load."""
    failed: set[str] = field(default_factory=set)
    """Those of ``received`` that were not loaded completely."""


class WorkerRole:
    """INVARIANT: every command that was taken is in exactly one place: held back
    for the GPU, with a link, or in the reports; so each store is acknowledged once
    and each load reported once."""

    def __init__(
        self,
        take_link: Callable[[], Link | None],
        *,
        rank: int,
        by_block: bool,
        events: EventRing | Marks | None = None,
        idle_wait_s: float = IDLE_WAIT_S,
        on_cpu: bool = False,
        sync: bool = False,
        wait: Callable[[Sequence[int], float], bool] = wait_readable,
        count: Callable[[str, float], None] = lambda name, value: None,
        note: Callable[[Outcome], None] = lambda outcome: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        take_link: a newly registered link, once, or None.
        rank: this worker's rank in the engine.
        by_block: failures of loads are reported by block (one KV-cache group in the engine, of which a hit is every block).
        events: tell when a GPU is through; None for a CPU, which is when the hooks are called.
        idle_wait_s: how long a step in which nothing runs may wait for a load, at first and on a GPU.
        on_cpu: the engine computes on the cores that copy; then it is ``IDLE_ON_CPU`` times that.
        sync: loads may be synchronous where the daemon can be killed.
        wait: waits so long for one of the descriptors.
        count: adds to a named counter.
        note: is told of each job's end.
        """
        self._take_link = take_link
        self._rank = rank
        self._by_block = by_block
        self._events = events
        self._held: deque[tuple[Mark, Callable[[], None]]] = deque()
        self._idle_wait_s = idle_wait_s
        self._on_cpu = on_cpu
        self._sync = sync
        self._late = False
        """The daemon has not ended a synchronous load in time."""
        self._last_load = 0.0  # when the last load began
        self._wait = wait
        self._count = count
        self._note = note
        self._clock = clock
        self._link: Link | None = None
        self._old: list[Link] = []
        self._loading: dict[int, JobCommand] = {}
        self._found = Transfers()
        self._bad_blocks: set[int] = set()
        self._owed: StepCommands | None = None
        self._idle = False
        self._ahead: dict[int, Link] = {}
        """The owed step's stores that a daemon has already, by job."""
        self._spoilt = False
        """The step computes behind a synchronous load that failed."""
        self._report = Report()
        self._ready: bool | None = None
        self._renewed = False

    @property
    def ready(self) -> bool:
        """Whether jobs are taken and have a store to go to."""
        return self._link is not None and self._link.healthy and self._link.store_ready

    def start_loads(self, step: StepCommands) -> None:
        """``start_load_kv``: the step's loads are under way, and a synchronous one is over."""
        if step is not self._owed:
            self.send_loads(step)
        if step.sync is not None:
            self._finish(step.sync)

    def send_loads(self, step: StepCommands) -> None:
        """Send a step's loads. REQUIRES: the steps before have computed, on this side of the GPU."""
        self._adopt()
        self._idle = step.idle and self._idle_wait_s > 0
        if self._owed is not None:
            # The last step's hook was left out: its bytes are final by now.
            self.start_stores(self._owed)
        self._owed, self._spoilt = step, False
        for command in step.loads:
            self._loading[command.job] = command
            self._last_load = self._clock()
        self._when_done(bool(step.loads), lambda: self._send_loads(step))
        self._send_ahead(step)

    def _send_loads(self, step: StepCommands) -> None:
        if self._link is not None and (step.finished or step.preempted):
            # Before the step's jobs: an id may be used again.
            self._link.notify(msg.Finished(list(map(wire_id, step.finished)), list(map(wire_id, step.preempted))))
        for command in step.loads:
            for_ever = command.job == step.sync and self._link is not None and not self._link.killable
            if for_ever or not self._submit(command, msg.KIND_LOAD):
                self._count("loads_refused", 1)
                self._load_ended(command.job, msg.STATUS_DROPPED, b"")
        if step.loads and self._link is not None:
            self._link.flush(self._clock())  # the forward pass may lie between here and the poll

    def _send_ahead(self, step: StepCommands) -> None:
        """Give the daemon what the step will store, so that it has places by the step's end."""
        link = self._link
        if link is None or not link.takes_ahead or self._held:  # nothing passes what was before it
            return
        for command in step.stores:
            now = self._clock()
            if command.ahead and link.submit(command.job, msg.KIND_STORE, command.request, command.frame, now, ahead=True):
                self._ahead[command.job] = link
        if self._ahead:
            link.flush(self._clock())

    def start_stores(self, step: StepCommands) -> None:
        """``wait_for_save``: the step's bytes are final."""
        self._owed = None
        if step.stores:
            self._when_done(True, lambda: self._send_stores(step))

    def _send_stores(self, step: StepCommands) -> None:
        for command in step.stores:
            if (link := self._ahead.pop(command.job, None)) is not None:
                self._end_ahead(command.job, link)
            elif self._spoilt or not self._submit(command, msg.KIND_STORE):
                self._count("stores_refused", 1)
                self._store_ended(command.job, {ALL_PARTS})

    def _end_ahead(self, job: int, link: Link) -> None:
        """The daemon may read a store's blocks now, or never: there is nothing good in them, they are about to go, or
        this daemon was not told what the GPU has yet to do."""
        if self._spoilt or link is not self._link or not link.healthy:
            self._count("stores_refused", 1)
            link.cancel(job, self._clock())
        else:
            link.make_final(job, self._clock())

    def _when_done(self, jobs: bool, send: Callable[[], None]) -> None:
        """Send in order: at once, where the daemon waits for the GPU or there is none, else when it is through.

        Args:
            jobs: whether any of what is sent depends on the GPU.
        """
        events = self._events
        if isinstance(events, EventRing) and (self._held or self._link is not None and not self._link.sees_events):
            events = events.marks  # nothing passes what was before it
        if isinstance(events, EventRing):
            if jobs and self._link is not None and self._link.healthy:
                self._link.notify(msg.After(events.record()))
        elif events is not None and (jobs or self._held):
            self._held.append((events.record() if jobs else self._held[-1][0], send))
            self._let_go()
            return
        send()

    def _let_go(self) -> None:
        """Send what was held back for what the GPU has done by now."""
        while self._held and self._held[0][0].query():
            self._held.popleft()[1]()

    def poll(self) -> Transfers:
        """``get_transfer_results``: requests whose load is over since the last call."""
        self._pump()
        if self._idle and self._loading and not self._found.received:
            self._await_load()
        found, self._found = self._found, Transfers()
        return found

    def take_bad_blocks(self) -> set[int]:
        """``get_block_ids_with_load_errors``: blocks without valid bytes since the last call."""
        bad, self._bad_blocks = self._bad_blocks, set()
        return bad

    def take_report(self) -> Report | None:
        """``build_connector_worker_meta``: None if nothing happened."""
        ready, report = self.ready, self._report
        report.renewed = self._renewed or ready != self._ready
        if report.renewed or report.failed:
            report.ready[self._rank] = ready
            if self._sync:
                report.sync = ready and self._link.killable and not self._late
        elif not report.stores:
            return None
        self._ready, self._renewed = ready, False
        self._report = Report()
        return report

    def adopt(self, link: Link) -> None:
        """Take a session; the one before is drained."""
        if self._link is not None:
            self._old.append(self._link)
        self._link, self._renewed, self._late = link, True, False

    def leave(self, seconds: float) -> bool:
        """End the sessions before the KV memory goes; whether no daemon has it mapped any more.

        No job outlives this in the engine's books: what was not sent is refused, what was
        is given up. Only of a daemon that does not answer there may be some, until
        ``disown`` or the daemon's end.
        """
        links = [link for link in [self._link, *self._old] if link is not None]
        self._link, self._old = None, links
        self._refuse_unsent()
        until = self._clock() + seconds
        for link in links:
            link.leave(self._clock())
        while True:
            for link in links:
                self._collect(link.pump(self._clock()), lost=True)
            there = [link.leaving_descriptor for link in links if link.connected]
            left = until - self._clock()
            if not there or left <= 0:
                return not there
            self._wait(there, min(left, _LEAVE_LOOK_S))

    def disown(self) -> None:
        """End what is left of the sessions and fail their jobs.

        REQUIRES: the memory that their daemons have mapped is not the engine's any more.
        """
        links = [link for link in [self._link, *self._old] if link is not None]
        self._link, self._old = None, []
        self._refuse_unsent()
        for link in links:
            self._collect(link.disown(self._clock()), lost=True)
            link.close()

    def _refuse_unsent(self) -> None:
        """Refuse what is still to be sent: its bytes will not be there. REQUIRES: there is no link."""
        while self._held:
            self._held.popleft()[1]()
        if self._owed is not None:
            owed, self._owed = self._owed, None
            self._send_stores(owed)

    def close(self) -> None:
        """End the sessions; the engine is going down and no job matters any more."""
        for link in [self._link, *self._old]:
            if link is not None:
                link.close()
        self._link, self._old = None, []

    def _submit(self, command: JobCommand, kind: str) -> bool:
        # Also without a store: the daemon answers such jobs at once, and what this
        # side knows of the store may be old, because an idle engine asks nothing.
        if self._link is None:
            return False
        return self._link.submit(command.job, kind, command.request, command.frame, self._clock())

    def _await_load(self) -> None:
        """Give the daemons a moment, and the processor, to end a load that all wait for.

        A request that comes meanwhile waits for the rest of the moment.
        """
        now = self._clock()
        until = now + self._idle_wait_s * self._grown(now - self._last_load)
        while not self._found.received:
            # One before may still have it.
            links = [link for link in [self._link, *self._old] if link is not None and link.descriptor() >= 0]
            left = until - self._clock()
            if not links or left <= 0 or not self._wait([link.descriptor() for link in links], left):
                return
            for link in links:
                self._collect(link.pump(self._clock()))

    def _finish(self, job: int) -> None:
        """Wait for the end of a synchronous load: the step computes next, into its blocks as well if it failed.

        So it is no end that the daemon is late. It is given up then, and killed if it says nothing.
        """
        patience = self._clock() + SYNC_PATIENCE_S
        complain = patience + _NO_END_S
        while (command := self._loading.get(job)) is not None:
            now = self._clock()
            # One before can't have it: the job is of this step.
            assert self._link is not None, "a load that was not sent has ended"
            if now >= patience:
                if not self._late:
                    self._late = True
                    logger.warning(
                        "mooncake-worker did not load request %s in %.0f s: cancelled; until there is a new one no step waits for it",
                        command.request,
                        SYNC_PATIENCE_S,
                    )
                self._link.cancel(job, now)
            if now >= complain:
                complain = float("inf")
                logger.error(
                    "mooncake-worker neither answers nor ends: the engine stands still until it does. "
                    "Is the process frozen, or in uninterruptible sleep? (With load_async: true no step waits for it.)"
                )
            self._collect(self._link.pump(now))
            if job in self._loading:
                self._wait([self._link.descriptor()], _LEAVE_LOOK_S)

    def _grown(self, taken_s: float) -> float:
        """How many times the first the next wait is."""
        if any(command.far for command in self._loading.values()):
            return IDLE_GROWS_TO
        if self._on_cpu:
            return IDLE_ON_CPU
        return min(max(taken_s / IDLE_GROWS_S, 1), IDLE_GROWS_TO)

    def _adopt(self) -> None:
        """Take a session that the maintainer has made; the one before is drained."""
        if (fresh := self._take_link()) is not None:
            self.adopt(fresh)

    def _pump(self) -> None:
        now = self._clock()
        self._adopt()
        self._let_go()
        if self._link is not None:
            self._collect(self._link.pump(now))
        if self._old:
            for link in self._old:
                # What a link that was told to leave says of a load was of memory that may be other by now.
                self._collect(link.pump(now), lost=link.leaving)
            for link in [link for link in self._old if link.done]:
                link.close()
                self._old.remove(link)

    def _collect(self, outcomes: list[Outcome], lost: bool = False) -> None:
        """Args:
        lost: what was loaded is about to go, or has gone.
        """
        for outcome in outcomes:
            self._note(outcome)
            if outcome.kind == msg.KIND_STORE:
                self._store_ended(outcome.job, _unsaved(outcome))
            elif lost:
                self._load_ended(outcome.job, msg.STATUS_CANCELLED, b"")
            else:
                self._load_ended(outcome.job, outcome.status, outcome.failed)

    def _store_ended(self, job: int, unsaved: set[int]) -> None:
        self._report.stores[job] = 1
        if unsaved:
            self._report.incomplete[job] = unsaved

    def _load_ended(self, job: int, status: str, failed: bytes) -> None:
        command = self._loading.pop(job)
        sync = self._owed is not None and self._owed.sync == job
        if not sync:  # vLLM does not wait for it
            self._found.received.add(command.request)
        if status == msg.STATUS_OK and not failed:
            return
        self._spoilt |= sync
        self._report.failed.add(command.request)
        if not self._by_block:
            self._found.failed.add(command.request)
            return
        suspects = set(block_ids(command.suspects))
        suspects.discard(0)
        # Only a daemon that finished the job knows which blocks are good; and it
        # can only speak of this job's.
        named = set(block_ids(failed)) & suspects if status in (msg.STATUS_OK, msg.STATUS_FAILED) else set()
        self._bad_blocks |= named or suspects


def _unsaved(outcome: Outcome) -> set[int]:
    """The parts of a store job that the daemon has not saved, as far as it says."""
    if outcome.status == msg.STATUS_OK:
        return set()
    named = outcome.result.incomplete if outcome.result is not None and outcome.status == msg.STATUS_FAILED else None
    return set(block_ids(named)) if named else {ALL_PARTS}
