"""The scheduler role: what to load, what to save, which blocks to hold.

Runs on vLLM's scheduling path. Nothing here waits, except a synchronous lookup
with its deadline, and nothing loops over blocks in Python beyond what is new in
a step.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mooncake_sidecar import tiers
from mooncake_sidecar.jobs import (
    JobCommand,
    Numbering,
    Report,
    StepCommands,
    load_frame,
    salt_tag,
)
from mooncake_sidecar.lookup import LookupClient
from mooncake_sidecar.namespace import Geometry
from mooncake_sidecar.pins import PinLedger
from mooncake_sidecar.saving import Saver
from mooncake_sidecar.states import StateRules
from mooncake_sidecar.syncloads import SyncLoads
from mooncake_sidecar.tables import Span
from mooncake_sidecar.tracker import Entry, LoadPlan
from mooncake_sidecar.wishes import WishReader

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
        sync_tokens: int = 0,
        states: StateRules | None = None,
        ttl_s: int = 0,
        pin: int = 0,
        count: Callable[[str, float], None] = lambda name, value: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        release: takes the ids of finished requests that may hold leases.
        ranks: workers that report each job.
        loads: look up and load.
        saves: save prefills (producer or both).
        saves_decode: save what decoding completes, in any role.
        by_block: failures of loads are reported by block (one KV-cache group in the engine, of which a hit is every block).
        sync_tokens: the longest load that may be synchronous, see ``SyncLoads``.
        states: which recurrent states to trust, None for all that are offered.
        ttl_s: how long what requests store lives where they do not say, 0 as the namespace says.
        pin: how strongly it is kept where they do not say.
        count: adds to a named counter.
        """
        self._geometry = geometry
        self._block = geometry.spec.scheduler_block_tokens
        self._hash = geometry.spec.hash_block_tokens
        self._block_tokens = geometry.block_tokens
        self._align = self._hash if geometry.fine else self._block
        self._lookup = lookup
        self._release = release
        self._numbers = Numbering(epoch)
        self._loads = loads
        self._by_block = by_block
        self._clock = clock
        self._pins = PinLedger(ranks)
        self._sync = SyncLoads(sync_tokens)
        self._saver = Saver(geometry, self._pins, self._numbers, prefills=saves, decodes=saves_decode, states=states)
        self._ttl_s = ttl_s
        self._pin = pin
        self._wishes = WishReader(clock, count)
        self._entries: dict[str, Entry] = {}
        self._armed: list[str] = []
        self._retire_next: list[str] = []
        self._released: list[str] = []
        self._not_ready: dict[int, float] = {}
        self._running: set[str] = set()

    # ---- hooks in the order of a step ----

    def bind(self, pool: Any) -> None:
        """``bind_gpu_block_pool``."""
        self._pins.bind(pool)
        self._sync.bind(pool)

    def arrived(self, request: Any) -> None:
        """``on_new_request``, for one with kv_transfer_params: what is no object would end the engine in vLLM's own code."""
        if not isinstance(request.kv_transfer_params, Mapping):
            self._wishes.read(request)
            request.kv_transfer_params = None

    def match(self, request: Any, local_tokens: int) -> tuple[int | None, bool]:
        """``get_num_new_matched_tokens``: tokens that can be loaded beyond ``local_tokens``, and whether beside the steps."""
        if self._sync.under_way and local_tokens:
            return None, False
        try:
            return self._match(request, local_tokens)
        finally:
            self._sync.asked()

    def _match(self, request: Any, local_tokens: int) -> tuple[int | None, bool]:
        self._keep_up()
        if not self._loads or request.num_tokens < self._align or request.skip_reading_prefix_cache:
            return 0, False
        entry = self._entry(request)
        entry.load = None
        if entry.failed:  # until it has been scheduled; else what failed would be tried for ever
            return 0, False
        if self._not_ready and not self._ready():
            return 0, False
        limit, asked = request.num_tokens, request.num_tokens
        if entry.wishes.max_load_tokens is not None:
            limit = min(limit, (local_tokens + entry.wishes.max_load_tokens) // self._align * self._align)
            # A hit of all that is asked about would be cut by its last block,
            # because a request's last token is computed. Here more follows.
            asked = min(asked, limit + 1) if self._align > 1 else limit
        if limit - local_tokens < self._align:
            return 0, False
        hit = self._lookup.ask(request.request_id, asked, request.block_hashes)
        entry.asked = True
        if hit is None:
            return None, False
        external = min(hit.tokens, limit) - local_tokens
        if external <= 0:
            return 0, False
        entry.load = LoadPlan(
            local_tokens,
            local_tokens + external,
            hit.tails,
            hit.tiers,
            hit.tokens,
            hit.lasting,
        )
        far = tiers.is_far(hit.tiers, local_tokens, local_tokens + external)
        alone = not self._running and local_tokens + external < request.num_tokens
        entry.load.sync = alone and not far and self._sync.suits(external)
        return external, not entry.load.sync

    def allocated(self, request: Any, blocks: Any, external_tokens: int) -> None:
        """``update_state_after_alloc``: the load goes ahead, is shorter, or is not ours."""
        self._sync.asked()  # vLLM did not ask about one whose load is over, and which runs in this step
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
        plan.tables = [
            Span(0, blocks.blocks[group][: -(-plan.token_len // tokens)]).ids
            for group, tokens in zip(self._geometry.store_group_ids, self._block_tokens, strict=True)
        ]
        if plan.sync:
            self._sync.begin(request.request_id, blocks.blocks[0][plan.local_tokens // self._block_tokens[0] :])
        self._armed.append(request.request_id)

    def hit_sources(self, request: Any, tokens: int) -> dict[Any, int]:
        """``get_external_cache_hit_sources``: the tokens by tier; the load was just armed."""
        if tokens <= 0:
            return {}
        entry = self._entries.get(request.request_id)
        plan = entry.load if entry is not None else None
        if plan is None:
            return tiers.sources((), 0, tokens, tokens)
        return tiers.sources(plan.tiers, plan.local_tokens, plan.hit_tokens, tokens)

    def commands(self, output: Any) -> StepCommands:
        """``build_connector_meta``: this step's jobs."""
        step = StepCommands()
        self._keep_up()
        self._lookup.new_step()
        self._sync.new_step()
        self._retire(output, step)
        for request_id in self._armed:
            entry = self._entries.get(request_id)
            if entry is not None and entry.load is not None and entry.load.armed:
                sync = entry.load.sync
                step.loads.append(self._load(entry))
                if sync:
                    step.sync = step.loads[-1].job
        self._armed.clear()
        scheduled = output.num_scheduled_tokens
        step.idle = not scheduled and not self._running
        self._saver.advance(scheduled)
        self._begin_new(output)
        self._begin_resumed(output)
        step.stores = self._saver.jobs(self._entries, output.kv_connector_block_state, scheduled)
        return step

    def report(self, report: Report) -> None:
        """``update_connector_output``: what the workers said."""
        if report.renewed:
            self._pins.new_era()
        for job, ranks in report.stores.items():
            self._pins.acknowledge(job, ranks, report.incomplete.get(job, ()))
        if report.sync is not None:
            self._sync.allowed = report.sync
        for request_id in report.failed:
            sync = self._sync.failed(request_id)
            if (entry := self._entries.get(request_id)) is None:
                continue
            entry.failed = True
            if sync and entry.tracker is not None:
                # vLLM has it compute again from the first block that is missing.
                entry.failed, entry.brought = False, (0, 0)
                self._saver.begin(entry, 0, entry.tracker.prefill_end)
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
        if offloads and entry is not None:
            self._saver.finished_tail(entry, tables, offloads)
        return False

    def finished(self, request: Any) -> None:
        """``request_finished``: forget it here and now, its id may be used again before the next step."""
        request_id = request.request_id
        entry = self._entries.get(request_id)
        if entry is None or entry.request is not request:
            return
        del self._entries[request_id]
        self._saver.forget(request_id)
        self._lookup.discard(request_id)
        if entry.asked:
            self._released.append(request_id)

    @property
    def pending(self) -> bool:
        """``has_pending_push_work``: the engine must step on to collect acknowledgements."""
        return len(self._pins) > 0 or self._saver.pending

    def reset(self) -> bool:
        """``reset_cache``: forget proposed hits and have the namespace's chunks dropped.

        What was computed before is not stored after it, see ``_begin_generation``.
        """
        self._drop_offers()
        done = self._lookup.reset()
        if done:
            self._begin_generation()
        return done

    # ---- parts ----

    def _keep_up(self) -> None:
        """Begin a new generation if lookupd has told of one: an operator or another engine has reset the namespace."""
        if self._lookup.generation != self._numbers.generation:
            self._drop_offers()
            self._begin_generation()

    def _drop_offers(self) -> None:
        for entry in self._entries.values():
            if entry.load is not None and not entry.load.armed:
                entry.load = None

    def _begin_generation(self) -> None:
        """What is computed from here on is of the newest generation.

        Jobs of before name the one before, which the store takes nothing more of.
        Runs that are under way are saved no more: what they hold was computed before
        the reset, perhaps by other weights, and all that they add to it follows from
        that. What begins afterwards is saved, a preempted request that resumes
        included.
        """
        self._saver.drop()
        self._numbers.generation = self._lookup.generation
        self._numbers.epoch += 1
        for entry in self._entries.values():
            if entry.tracker is not None:
                self._saver.end(entry)
            entry.outdated = entry.outdated or entry.tracker is not None or entry.loading or entry.load is not None

    def _entry(self, request: Any) -> Entry:
        entry = self._entries.get(request.request_id)
        if entry is None or entry.request is not request:
            wishes = self._wishes.read(request)
            ttl_s = self._ttl_s if wishes.ttl_s is None else wishes.ttl_s
            pin = self._pin if wishes.pin is None else wishes.pin
            label = (salt_tag(request.cache_salt), ttl_s, pin)
            entry = self._entries[request.request_id] = Entry(request, wishes, label)
        return entry

    def _ready(self) -> bool:
        now = self._clock()
        self._not_ready = {rank: since for rank, since in self._not_ready.items() if now - since < NOT_READY_FOR_S}
        return not self._not_ready

    def _retire(self, output: Any, step: StepCommands) -> None:
        # Workers retire requests before they take the step's jobs, so one whose
        # tail is only sent now is retired with the next step; but at once where
        # its id begins again now: what is saved of the one is not of the other.
        late = self._saver.late
        if late:
            late = late - {new.req_id for new in output.scheduled_new_reqs}
        step.finished += self._retire_next
        self._retire_next = []
        if self._running:
            self._running -= output.finished_req_ids
            self._running.difference_update(output.preempted_req_ids or ())
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
                entry.loading = entry.outdated = False
                self._saver.forget(request_id)
            step.preempted.append(request_id)

    def _load(self, entry: Entry) -> JobCommand:
        request, plan = entry.request, entry.load
        entry.load, entry.loading = None, True
        entry.brought = self._saver.brought(plan)
        suspects = plan.tables[0][4 * (plan.local_tokens // self._block_tokens[0]) :] if self._by_block else b""
        job = self._numbers.take()
        frame = load_frame(
            job,
            self._numbers.epoch,
            request,
            plan.token_len,
            plan.local_tokens,
            plan.tables,
            plan.tails,
            self._hash,
            entry.wishes.controls(),
        )
        far = tiers.is_far(plan.tiers, plan.local_tokens, plan.token_len)
        return JobCommand(job, request.request_id, frame, suspects, far)

    def _begin_new(self, output: Any) -> None:
        """Requests scheduled for the first time, and with the second model runner those resumed."""
        for new in output.scheduled_new_reqs:
            self._running.add(new.req_id)
            entry = self._entries.get(new.req_id)
            if entry is None:
                continue
            prefill = new.prefill_token_ids if new.prefill_token_ids is not None else new.prompt_token_ids
            prefill_end = len(prefill) if prefill is not None else entry.request.num_prompt_tokens
            self._begin(entry, new.num_computed_tokens + output.num_scheduled_tokens[new.req_id], prefill_end)

    def _begin_resumed(self, output: Any) -> None:
        """With the first model runner: requests that come back after a preemption."""
        for request_id in output.scheduled_cached_reqs.resumed_req_ids:
            self._running.add(request_id)
            if (entry := self._entries.get(request_id)) is not None:
                # It computes everything again, what it had generated included.
                request = entry.request
                computed = request.num_computed_tokens + output.num_scheduled_tokens[request_id]
                self._begin(entry, computed, request.num_tokens)

    def _begin(self, entry: Entry, computed: int, prefill_end: int) -> None:
        if entry.failed or not entry.loading:
            entry.brought = (0, 0)
        entry.failed = entry.loading = False
        self._saver.begin(entry, computed, prefill_end)
