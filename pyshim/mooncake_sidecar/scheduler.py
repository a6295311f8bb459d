"""The scheduler role: what to load, what to save, which blocks to hold.

Runs on vLLM's scheduling path. Nothing here waits, except a synchronous lookup
with its deadline, and nothing loops over blocks in Python beyond what is new in
a step.
"""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from mooncake_sidecar.jobs import (
    JobCommand,
    Report,
    StepCommands,
    StoreRequest,
    block_bytes,
    controls,
    load_frame,
    store_frame,
)
from mooncake_sidecar.lookup import LookupClient
from mooncake_sidecar.namespace import Geometry
from mooncake_sidecar.pins import NULL_BLOCK, PinLedger
from mooncake_sidecar.tails import BoundaryPut, TailPlanner
from mooncake_sidecar.tracker import Entry, LoadPlan, Tracker

logger = logging.getLogger("vllm.mooncake_sidecar.scheduler")

# A rank that said "not ready" while the engine then fell idle may long be ready
# again; after this a lookup is tried. A load that fails costs one step.
NOT_READY_FOR_S = 2.0


class SchedulerRole:
    """The state machine of requests, loads and saves; used by one thread."""

    def __init__(
        self,
        geometry: Geometry,
        lookup: LookupClient,
        release: Callable[[list[str]], None],
        *,
        epoch: int,
        ranks: int,
        loads: bool,
        saves: bool,
        saves_decode: bool,
        by_block: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        release: takes the ids of finished requests that may hold leases.
        ranks: workers that report each job.
        loads: look up and load.
        saves: save prefills (producer or both).
        saves_decode: save what decoding completes, in any role.
        by_block: failures of loads are reported by block (one KV-cache group in the engine).
        """
        self._geometry = geometry
        self._block = geometry.spec.scheduler_block_tokens
        self._hash = geometry.spec.hash_block_tokens
        self._block_tokens = geometry.block_tokens
        self._align = self._hash if geometry.fine else self._block
        self._planner = TailPlanner.of(geometry)
        self._store_group = {engine: store for store, engine in enumerate(geometry.store_group_ids)}
        self._lookup = lookup
        self._release = release
        self._epoch = epoch
        self._loads = loads
        self._saves = saves
        self._saves_decode = saves_decode
        self._by_block = by_block
        self._clock = clock
        self._pins = PinLedger(ranks)
        self._entries: dict[str, Entry] = {}
        self._armed: list[str] = []
        self._next_job = 1
        self._tails: list[JobCommand] = []
        self._retire_next: list[str] = []
        self._released: list[str] = []
        self._growing: dict[str, Entry] = {}
        # Requests that a later step may save from: what only decodes is left
        # out unless that is saved, so that a step costs nothing for it.
        self._not_ready: dict[int, float] = {}

    # ---- hooks in the order of a step ----

    def bind(self, pool: Any) -> None:
        """``bind_gpu_block_pool``."""
        self._pins.bind(pool)

    def match(self, request: Any, local_tokens: int) -> tuple[int | None, bool]:
        """``get_num_new_matched_tokens``: tokens that can be loaded beyond ``local_tokens``, and whether to."""
        if not self._loads or request.num_tokens < self._align or request.skip_reading_prefix_cache:
            return 0, False
        entry = self._entry(request)
        entry.load = None
        if entry.failed:  # until it has been scheduled; else what failed would be tried for ever
            return 0, False
        if self._not_ready and not self._ready():
            return 0, False
        limit = request.num_tokens
        wishes = controls(request.kv_transfer_params)
        if wishes is not None and wishes.max_load_tokens is not None:
            limit = min(limit, local_tokens + wishes.max_load_tokens)
        if limit - local_tokens < self._align:
            return 0, False
        hit = self._lookup.ask(request.request_id, limit, request.block_hashes)
        entry.asked = True
        if hit is None:
            return None, False
        external = min(hit.tokens, limit) - local_tokens
        if external <= 0:
            return 0, False
        entry.load = LoadPlan(local_tokens, local_tokens + external, hit.tails)
        return external, True

    def allocated(self, request: Any, blocks: Any, external_tokens: int) -> None:
        """``update_state_after_alloc``: the load goes ahead, is shorter, or is not ours."""
        entry = self._entry(request)
        plan = entry.load
        if plan is None:
            return
        if external_tokens <= 0:
            entry.load = None
            return
        if plan.local_tokens + external_tokens != plan.token_len:
            # The core took less than was offered; boundaries of the full hit do not apply.
            plan.token_len = plan.local_tokens + external_tokens
            plan.tails = ()
        plan.armed = True
        plan.tables = blocks.get_block_ids(group_ids=self._geometry.store_group_ids)
        self._armed.append(request.request_id)

    def commands(self, output: Any) -> StepCommands:
        """``build_connector_meta``: this step's jobs."""
        step = StepCommands()
        self._lookup.new_step()
        self._retire(output, step)
        for request_id in self._armed:
            entry = self._entries.get(request_id)
            if entry is not None and entry.load is not None and entry.load.armed:
                step.loads.append(self._load(entry))
        self._armed.clear()
        saves = self._advance_running(output)
        self._advance_new(output, saves)
        self._advance_resumed(output, saves)
        state = getattr(output, "kv_connector_block_state", None)
        puts = self._handed_off(state) if state is not None else {}
        for request_id in puts:
            saves.setdefault(request_id, (0, False))
        for request_id, (boundary, publish) in saves.items():
            command = self._store(request_id, boundary, publish, puts.get(request_id, []), state)
            if command is not None:
                step.stores.append(command)
        step.stores += self._tails
        self._tails.clear()
        return step

    def report(self, report: Report) -> None:
        """``update_connector_output``: what the workers said."""
        if report.ready:
            self._pins.new_era()
        for job, ranks in report.stores.items():
            self._pins.acknowledge(job, ranks, job not in report.incomplete)
        for request_id in report.failed:
            if (entry := self._entries.get(request_id)) is not None:
                entry.failed = True
        for rank, is_ready in report.ready.items():
            if is_ready:
                self._not_ready.pop(rank, None)
            else:
                self._not_ready[rank] = self._clock()

    def finished_tail(
        self, request: Any, tables: Sequence[Sequence[int]], offloads: Sequence[tuple[int, int, int]]
    ) -> bool:
        """``register_finished_partial_tail``: save a tail that was finished with its request.

        Its blocks are held here, so that the request need not wait: always False.
        """
        entry = self._entries.get(request.request_id)
        if not self._saves or not offloads or entry is None or entry.tracker is None:
            return False
        tracker = entry.tracker
        puts = [
            (self._store_group.get(group, -1), block, tokens)
            for group, block, tokens in offloads
            if block != NULL_BLOCK and tokens <= tracker.prefill_end
        ]
        usable = len(puts) == len(offloads) and len({tokens for _, _, tokens in puts}) == 1
        if not usable or any(group not in self._geometry.mamba_groups for group, _, _ in puts):
            return False
        own = [list(tables[group]) for group in self._geometry.store_group_ids]
        puts = [
            *self._planner.puts(
                own, puts, request.num_prompt_tokens, request.num_computed_tokens, len(request.block_hashes), False
            ),
            *puts,
        ]
        what = StoreRequest(request, 0, request.num_computed_tokens, tracker.prefill_end, own, puts)
        self._tails.append(self._emit(tracker, what))
        return False

    def finished(self, request: Any) -> None:
        """``request_finished``: forget it here and now, its id may be used again before the next step."""
        request_id = request.request_id
        entry = self._entries.get(request_id)
        if entry is None or entry.request is not request:
            return
        del self._entries[request_id]
        self._growing.pop(request_id, None)
        self._lookup.discard(request_id)
        if entry.asked:
            self._released.append(request_id)

    @property
    def pending(self) -> bool:
        """``has_pending_push_work``: the engine must step on to collect acknowledgements."""
        return len(self._pins) > 0 or bool(self._tails)

    def reset(self) -> bool:
        """``reset_cache``: forget proposed hits and have the namespace's chunks dropped.

        Jobs of before are of an older epoch from here on: what the reset dropped
        is neither stored again by a late one nor taken for saved.
        """
        for entry in self._entries.values():
            if entry.load is not None and not entry.load.armed:
                entry.load = None
        done = self._lookup.reset()
        if done:
            self._epoch += 1
            self._pins.new_era()
        return done

    # ---- parts ----

    def _entry(self, request: Any) -> Entry:
        entry = self._entries.get(request.request_id)
        if entry is None or entry.request is not request:
            entry = self._entries[request.request_id] = Entry(request)
        return entry

    def _ready(self) -> bool:
        now = self._clock()
        self._not_ready = {rank: since for rank, since in self._not_ready.items() if now - since < NOT_READY_FOR_S}
        return not self._not_ready

    def _retire(self, output: Any, step: StepCommands) -> None:
        # Workers retire requests before they take the step's jobs, so one whose
        # tail is only sent now is retired with the next step.
        late = {command.request for command in self._tails}
        step.finished += self._retire_next
        self._retire_next = []
        for request_id in output.finished_req_ids:
            (self._retire_next if request_id in late else step.finished).append(request_id)
        if self._released:
            self._release(self._released)
            self._released = []
        for request_id in output.preempted_req_ids or ():
            if (entry := self._entries.get(request_id)) is not None:
                # An armed load is of this step: a reset preempts before a step
                # that may admit the request again, and vLLM waits for its load.
                if entry.load is not None and not entry.load.armed:
                    entry.load = None
                entry.tracker = None
                self._growing.pop(request_id, None)
            step.preempted.append(request_id)

    def _load(self, entry: Entry) -> JobCommand:
        request, plan = entry.request, entry.load
        entry.load = None
        suspects = b""
        if self._by_block:
            tokens = self._block_tokens[0]
            suspects = block_bytes(plan.tables[0][plan.local_tokens // tokens : -(-plan.token_len // tokens)])
        job = self._take_job()
        frame = load_frame(
            job,
            self._epoch,
            request,
            plan.token_len,
            plan.local_tokens,
            plan.tables,
            plan.tails,
            self._hash,
            self._block_tokens,
        )
        return JobCommand(job, request.request_id, frame, suspects)

    def _advance_new(self, output: Any, saves: dict[str, tuple[int, bool]]) -> None:
        """Requests scheduled for the first time, and with the second model runner those resumed."""
        for new in output.scheduled_new_reqs:
            entry = self._entries.get(new.req_id)
            if entry is None:
                continue
            prefill = new.prefill_token_ids if new.prefill_token_ids is not None else new.prompt_token_ids
            prefill_end = len(prefill) if prefill is not None else entry.request.num_prompt_tokens
            computed = new.num_computed_tokens + output.num_scheduled_tokens[new.req_id]
            self._begin(entry, computed, prefill_end, saves)

    def _begin(self, entry: Entry, computed: int, prefill_end: int, saves: dict[str, tuple[int, bool]]) -> None:
        entry.tracker = Tracker(computed, prefill_end)
        entry.failed = False
        if self._saves:
            self._plan(entry, saves)
        if self._saves_decode or (self._saves and computed < prefill_end):
            self._growing[entry.request.request_id] = entry
        else:
            self._growing.pop(entry.request.request_id, None)

    def _plan(self, entry: Entry, saves: dict[str, tuple[int, bool]]) -> None:
        plan = entry.tracker.plan_save(self._block, entry.request.num_prompt_tokens, self._geometry.fine)
        if plan is not None:
            saves[entry.request.request_id] = plan

    def _advance_resumed(self, output: Any, saves: dict[str, tuple[int, bool]]) -> None:
        """With the first model runner: requests that come back after a preemption."""
        for request_id in output.scheduled_cached_reqs.resumed_req_ids:
            if (entry := self._entries.get(request_id)) is not None:
                # It computes everything again, what it had generated included.
                request = entry.request
                computed = request.num_computed_tokens + output.num_scheduled_tokens[request_id]
                self._begin(entry, computed, request.num_tokens, saves)

    def _advance_running(self, output: Any) -> dict[str, tuple[int, bool]]:
        """Requests that go on from an earlier step."""
        saves: dict[str, tuple[int, bool]] = {}
        scheduled, through = output.num_scheduled_tokens, []
        for request_id, entry in self._growing.items():
            if request_id not in scheduled:
                continue
            request, tracker = entry.request, entry.tracker
            computed = request.num_computed_tokens
            # Tokens that exist: drafts are scheduled but may be rejected.
            reach = min(computed + scheduled[request_id], request.num_tokens)
            if reach > tracker.token_len:
                tracker.token_len = reach
            if self._saves or computed >= tracker.prefill_end:
                self._plan(entry, saves)
            if tracker.token_len >= tracker.prefill_end and not self._saves_decode:
                through.append(request_id)
        for request_id in through:
            del self._growing[request_id]
        return saves

    def _handed_off(self, state: Any) -> dict[str, list[BoundaryPut]]:
        """Recurrent states at exact boundaries that the core offers this step."""
        accepted: dict[str, list[BoundaryPut]] = {}
        if not self._saves or not state.boundary_state_offloads:
            return accepted
        for request_id, offers in state.boundary_state_offloads.items():
            entry = self._entries.get(request_id)
            if entry is None or entry.tracker is None:
                continue
            puts = [
                (self._store_group[group], block, tokens)
                for group, block, tokens in offers
                if block != NULL_BLOCK
                and tokens <= entry.tracker.prefill_end
                and self._store_group.get(group, -1) in self._geometry.mamba_groups
            ]
            if puts:
                accepted[request_id] = puts
        return accepted

    def _store(
        self, request_id: str, boundary: int, publish: bool, state_puts: list[BoundaryPut], state: Any
    ) -> JobCommand | None:
        entry = self._entries[request_id]
        tracker, request = entry.tracker, entry.request
        tables = state.get_block_ids(request_id) if state is not None else None
        if tables is None:
            logger.debug("no block table for request %s: not saved", request_id)
            return None
        own = [tables[group] for group in self._geometry.store_group_ids]
        puts = state_puts
        if publish or state_puts:
            puts = [
                *self._planner.puts(
                    own, state_puts, request.num_prompt_tokens, tracker.token_len, len(request.block_hashes), publish
                ),
                *state_puts,
            ]
        if not boundary and not puts:
            return None
        return self._emit(tracker, StoreRequest(request, boundary, tracker.token_len, tracker.prefill_end, own, puts))

    def _emit(self, tracker: Tracker, what: StoreRequest) -> JobCommand:
        """Number a store job, hold its blocks and pack it."""
        job = self._take_job()
        if what.token_len:
            # Ranks may go back to where their last success was, but not behind
            # what all of them have: there the null block stands, which no one
            # reads. States are stored from boundary puts alone.
            saved = self._pins.saved(tracker.pins)
            held = []
            for group, (table, tokens) in enumerate(zip(what.tables, self._block_tokens, strict=True)):
                mamba = group in self._geometry.mamba_groups
                held.append([] if mamba else table[saved // tokens : -(-what.token_len // tokens)])
                what.tables[group] = [] if mamba else [NULL_BLOCK] * (saved // tokens) + held[group]
        else:
            what.tables = [[] for _ in self._block_tokens]
            held = tracker.pins.tables or what.tables
        self._pins.take(tracker.pins, job, held, [block for _, block, _ in what.boundary_puts], what.token_len)
        frame = store_frame(job, self._epoch, what, self._hash, self._block_tokens)
        return JobCommand(job, what.request.request_id, frame)

    def _take_job(self) -> int:
        job = self._next_job
        self._next_job += 1
        return job
