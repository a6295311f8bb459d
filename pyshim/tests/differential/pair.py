"""A KV connector with two children that are shown the same calls: ours and the in-tree one."""

import copy
from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import mooncake_sidecar.connector as our_module
import vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.scheduler as their_module
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.connector import MooncakeStoreConnector
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.data import MooncakeLookupResult, TailKeyBoundary

from mooncake_sidecar.lookup import MISS, Hit, LookupCounters

from . import rules
from .pool import CountingPool

PENDING = object()


class Store:
    """What lookups are answered: per request (tokens, tails) or ``PENDING``; both children get the same."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.resets = 0


class OurLookup:
    """In place of ``LookupClient``."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.store: Store | None = None
        self.counters = LookupCounters()
        self.generation = 1

    def ask(self, request_id, num_tokens, hashes, *_):
        answer = self.store.answers.get(request_id)
        if answer is PENDING:
            return None
        return Hit(answer[0], tuple(answer[1])) if answer else MISS

    def reset(self):
        self.store.resets += 1
        self.generation += 1
        return True

    def new_step(self):
        pass

    def discard(self, request_id):
        pass

    def release(self, requests):
        pass

    def close(self):
        pass


class TheirLookup:
    """In place of ``LookupKeyClient``."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.store: Store | None = None

    def lookup(self, request_id, num_tokens, hashes, non_block=False):
        answer = self.store.answers.get(request_id)
        if answer is PENDING:
            return None
        if not answer:
            return MooncakeLookupResult(0)
        return MooncakeLookupResult(answer[0], tuple(TailKeyBoundary(*tail) for tail in answer[1]))

    def reset(self):
        return True

    def discard(self, request_id):
        pass


class NoRegistrar:
    """In place of ``Registrar``: there is no daemon."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.first_attempt = SimpleNamespace(wait=lambda timeout: True)

    def start(self):
        pass

    def stop(self):
        pass


@dataclass
class PairMetadata(KVConnectorMetadata):
    ours: Any
    theirs: Any


@dataclass
class PairReport(KVConnectorWorkerMetadata):
    ours: Any
    theirs: Any

    def aggregate(self, other):
        raise NotImplementedError


@dataclass
class Notes:
    """What the comparison needs to know of the hooks' calls."""

    store: Store = field(default_factory=Store)
    failed: set[str] = field(default_factory=set)
    """Requests of which a load failed and that have not been scheduled since."""
    used: Counter = field(default_factory=Counter)
    """Rule -> how often it explained a difference."""
    seen: Counter = field(default_factory=Counter)
    """State -> how often a case was in it."""


class PairConnector(KVConnectorBase_V1, SupportsHMA):
    """``engine_id`` says which child leads."""

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        self.leads_ours = vllm_config.kv_transfer_config.engine_id.startswith("ours")
        with (
            patch.object(our_module, "LookupClient", OurLookup),
            patch.object(our_module, "Registrar", NoRegistrar),
            patch.object(their_module, "LookupKeyClient", TheirLookup),
        ):
            self.ours = our_module.MooncakeSidecarConnector(vllm_config, role, kv_cache_config)
            self.theirs = MooncakeStoreConnector(vllm_config, role, kv_cache_config)
        self.notes = Notes()
        self.ours._lookup.store = self.theirs.connector_scheduler.client.store = self.notes.store
        self.lead = self.ours if self.leads_ours else self.theirs
        self.our_pool: CountingPool | None = None
        self.their_pool: CountingPool | None = None

    def both(self, name: str, *arguments: Any) -> Any:
        """Call a hook of both; they must agree."""
        ours, theirs = (getattr(child, name)(*arguments) for child in (self.ours, self.theirs))
        assert ours == theirs, f"{name}: ours {ours}, in-tree {theirs}"
        return ours

    # ---- what the scheduler reads once ----

    @property
    def supports_divergent_local_hybrid_hits(self):
        values = {child.supports_divergent_local_hybrid_hits for child in (self.ours, self.theirs)}
        assert len(values) == 1
        return values.pop()

    @property
    def requires_kv_delivery(self):
        return False

    def bind_gpu_block_pool(self, gpu_block_pool):
        self.our_pool = CountingPool(gpu_block_pool, self.leads_ours)
        self.their_pool = CountingPool(gpu_block_pool, not self.leads_ours)
        self.ours.bind_gpu_block_pool(self.our_pool)
        self.theirs.bind_gpu_block_pool(self.their_pool)

    # ---- the hooks of a step ----

    def on_new_request(self, request):
        self.both("on_new_request", request)

    def get_loaded_kv_cache_group_ids(self, request):
        return self.both("get_loaded_kv_cache_group_ids", request)

    def has_pending_block_frees(self):
        return self.both("has_pending_block_frees")

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        ours = self.ours.get_num_new_matched_tokens(request, num_computed_tokens)
        theirs = self.theirs.get_num_new_matched_tokens(request, num_computed_tokens)
        if ours != theirs:
            self.notes.used[self._why_none(request, num_computed_tokens, ours, theirs)] += 1
        answer = ours if self.leads_ours else theirs
        if answer[0] is None:
            self.notes.seen["a lookup was pending"] += 1
        elif answer[0] and num_computed_tokens:
            self.notes.seen["a load goes on where the engine's own cache ends"] += 1
        return answer

    def _why_none(self, request, local_tokens, ours, theirs):
        """The rule by which ours offers nothing where the in-tree connector offers or asks."""
        assert ours == (0, False), f"{request.request_id}: ours finds {ours}, in-tree {theirs}"
        if request.request_id in self.notes.failed:
            return rules.FAILED_LOAD
        left = request.num_tokens - local_tokens
        assert theirs[0] is None and left < self.ours._scheduler._align, f"only the in-tree connector finds {theirs}"
        return rules.NOTHING_LEFT

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        self.ours.update_state_after_alloc(request, blocks, num_external_tokens)
        self.theirs.update_state_after_alloc(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output):
        ours = self.ours.build_connector_meta(scheduler_output)
        self._catch_up(scheduler_output.scheduled_cached_reqs)
        theirs = self.theirs.build_connector_meta(self._without_readmitted(scheduler_output))
        # The scheduler takes the tables away when this returns.
        return PairMetadata(ours, theirs)

    def _catch_up(self, cached):
        """``DRAFTS_LAG``: tell the in-tree connector what has been computed before this step."""
        scheduler = self.theirs.connector_scheduler
        if not scheduler.save_decode_cache:
            return
        for request, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            if request in cached.resumed_req_ids:
                continue
            tracker = scheduler._request_trackers[request]
            # Asynchronously scheduled, tokens count as computed that do not exist yet.
            known = min(computed, scheduler._unfinished_requests[request][0].num_tokens)
            if tracker.token_len < known:
                self.notes.used[rules.DRAFTS_LAG] += 1
                tracker.token_len = known

    def _without_readmitted(self, output):
        """``READMITTED``: show the in-tree connector only those preempted requests that stay so."""
        preempted = output.preempted_req_ids or set()
        scheduler = self.theirs.connector_scheduler
        again = {
            request
            for request in preempted
            if request in output.num_scheduled_tokens
            or ((spec := scheduler.load_specs.get(request)) is not None and spec.can_load)
        }
        if not again:
            return output
        self.notes.used[rules.READMITTED] += len(again)
        for request in again:
            if (tracker := scheduler._request_trackers.get(request)) is not None:
                tracker.reset()
        output = copy.copy(output)
        output.preempted_req_ids = preempted - again
        return output

    def update_connector_output(self, connector_output):
        for name in ("ours", "theirs"):
            mine = copy.copy(connector_output)
            mine.kv_connector_worker_meta = getattr(connector_output.kv_connector_worker_meta, name)
            getattr(self, name).update_connector_output(mine)

    def request_finished(self, request, block_ids):
        return self.both("request_finished", request, block_ids)

    def request_finished_all_groups(self, request, block_ids):
        return self.both("request_finished_all_groups", request, block_ids)

    def register_finished_partial_tail(self, request, block_ids, partial_tail_offloads):
        delays = self.both("register_finished_partial_tail", request, block_ids, partial_tail_offloads)
        if request.request_id in self.theirs.connector_scheduler._finished_partial_tail_metas:
            self.notes.seen["a tail ends with its request"] += 1
        return delays

    def has_pending_push_work(self):
        return self.ours.has_pending_push_work() or self.theirs.has_pending_push_work()

    def reset_cache(self):
        return self.both("reset_cache")

    def take_events(self):
        return ()

    def shutdown(self):
        self.ours.shutdown()
        self.theirs.shutdown()

    # ---- worker role: not used ----

    def start_load_kv(self, forward_context, **kwargs):
        raise NotImplementedError

    def wait_for_layer_load(self, layer_name):
        raise NotImplementedError

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        raise NotImplementedError

    def wait_for_save(self):
        raise NotImplementedError
