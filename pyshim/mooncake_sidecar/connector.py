"""``MooncakeSidecarConnector``: the class that ``--kv-transfer-config`` names.

It only wires: configuration and geometry are checked here, then every hook is
passed to the role's object.
"""

import logging
import os
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import vllm
from vllm import envs
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)

from mooncake_sidecar import compat, config, namespace, version

version.check(KVConnectorBase_V1, vllm.__version__)

from vllm.distributed import kv_transfer  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults  # noqa: E402
from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes  # noqa: E402
from vllm.v1.metrics.cache_hit_source import CacheHitSource  # noqa: E402

from mooncake_sidecar import daemons, events, gpuevents, gpumem, gpunames, gpusleep, paths  # noqa: E402
from mooncake_sidecar.hostmem import MemfdAllocation  # noqa: E402
from mooncake_sidecar.layout import UnsupportedLayout  # noqa: E402
from mooncake_sidecar.lookup import LookupClient  # noqa: E402
from mooncake_sidecar.metadata import SidecarMetadata, SidecarWorkerMetadata  # noqa: E402
from mooncake_sidecar.observing import Jobs, Lookups  # noqa: E402
from mooncake_sidecar.presence import Presence  # noqa: E402
from mooncake_sidecar.prom import SidecarPromMetrics  # noqa: E402
from mooncake_sidecar.registrar import Registrar  # noqa: E402
from mooncake_sidecar.registration import START_BUDGET_S, Memory, Registrant, describe  # noqa: E402
from mooncake_sidecar.saving import WHOLE  # noqa: E402
from mooncake_sidecar.scheduler import SchedulerRole  # noqa: E402
from mooncake_sidecar.states import StateRules  # noqa: E402
from mooncake_sidecar.stats import SidecarStats  # noqa: E402
from mooncake_sidecar.syncloads import SYNC_LOAD_BYTES  # noqa: E402
from mooncake_sidecar.wishes import PINS  # noqa: E402
from mooncake_sidecar.worker import IDLE_WAIT_S, WorkerRole  # noqa: E402

logger = logging.getLogger("vllm.mooncake_sidecar.connector")

# Together the engine's start may be delayed by 5 s, no more.
_WORKER_WAITS_S = 4.0
_SCHEDULER_WAITS_S = 1.0


class MooncakeSidecarConnector(KVConnectorBase_V1, SupportsHMA):
    """KV connector whose store path runs in mooncake-lookupd and mooncake-worker."""

    _cache_hit_source = CacheHitSource.HOST

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        """Called by vLLM, once in the engine core (scheduler) and once in every worker.

        Raises:
            ValueError: the configuration or the model can't be served.
        """
        super().__init__(vllm_config, role, kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        self._settings = config.parse(transfer.kv_connector_extra_config)
        if (
            transfer.kv_role == "kv_consumer"
            and not self._settings.enable_lookup
            and not self._settings.save_decode_cache
        ):
            logger.warning("as a consumer without lookups and without save_decode_cache the connector does nothing")
        self._geometry = namespace.build(
            vllm_config,
            kv_cache_config,
            self._settings.cache_prefix,
            resolve_kv_cache_block_sizes(kv_cache_config, vllm_config),
            self._settings.shards_wanted,
            compat_keys=self._settings.compat_keys,
        )
        self._engine_id = transfer.engine_id
        self._epoch = time.time_ns()
        # vLLM has what is behind a missing block computed, and with it what a window there should see: of a group whose hits
        # are windows those are no blocks of the request any more. Such a request is computed from its beginning.
        self._by_block = len(kv_cache_config.kv_cache_groups) == 1 and self._geometry.spec.groups[0].kind in WHOLE
        self._stats = SidecarStats()
        self._scheduler: SchedulerRole | None = None
        self._worker: WorkerRole | None = None
        self._registrar: Registrar | None = None
        self._presence: Presence | None = None
        self._watch: gpusleep.Watch | None = None
        self._lookup: LookupClient | None = None
        self._events: events.Ledger | None = None
        self._follower: events.Follower | None = None
        self._counted = (0, 0, 0)
        self._allocation: MemfdAllocation | None = None
        self._closed = False
        if role == KVConnectorRole.SCHEDULER:
            config.warn_ignored(self._settings)
            if self._settings.compat_keys:
                logger.warning(compat.warning(self._geometry.spec, vllm_config))
            self._start_scheduler()

    # ---- scheduler role ----

    def _start_scheduler(self) -> None:
        settings, transfer = self._settings, self._vllm_config.kv_transfer_config
        parallel = self._vllm_config.parallel_config
        if transfer.kv_load_failure_policy != "recompute":
            logger.warning(
                "kv_load_failure_policy is %r: a request ends with an error when one of its blocks can't be loaded. "
                'Set "kv_load_failure_policy": "recompute" in --kv-transfer-config',
                transfer.kv_load_failure_policy,
            )
        self._lookup = LookupClient(
            settings.lookup_timeout_ms, settings.lookups_beside, record=Lookups(self._stats, self._geometry.block_tokens)
        )
        directory = paths.runtime_dir(settings.runtime_dir)
        wanted = [daemons.lookupd(directory, settings)]
        self._registrar = Registrar(
            self._lookup,
            self._geometry.spec,
            wanted[0].socket,
            paths.lookup_path(
                paths.lookup_base(directory, envs.VLLM_RPC_BASE_PATH), settings.lookup_rpc_port, parallel.data_parallel_index
            ),
            self._engine_id,
            self._epoch,
            lambda stop: daemons.ensure(wanted, directory, settings, START_BUDGET_S, stop),
        )
        self._scheduler = SchedulerRole(
            self._geometry,
            self._lookup,
            self._lookup.release,
            epoch=self._epoch,
            ranks=parallel.world_size,
            loads=settings.enable_lookup,
            saves=transfer.is_kv_producer,
            saves_decode=settings.save_decode_cache,
            by_block=self._by_block,
            sync_tokens=self._sync_tokens(),
            states=StateRules.of(self._geometry, self._vllm_config, self._kv_cache_config),
            ttl_s=settings.store_ttl_s,
            pin=PINS[settings.store_pin],
            count=self._stats.add,
        )
        self._pass_events_on()
        self._registrar.start()
        self._registrar.first_attempt.wait(_SCHEDULER_WAITS_S)

    def _pass_events_on(self) -> None:
        if not self._settings.enable_kv_events:
            return
        wanted = self._vllm_config.kv_events_config
        if wanted is None or not wanted.enable_kv_cache_events:
            logger.warning("enable_kv_events does nothing without vLLM's own stream: set --kv-events-config too")
            return
        self._events, self._follower = events.relay(self._geometry.store_group_ids, self._geometry.spec.groups)
        follow = self._follower.follow
        self._registrar.on_registered = lambda answer: follow(
            answer.events_endpoint, answer.events_replay, answer.events_topic
        )

    @property
    def requires_kv_delivery(self) -> bool:
        """A cache: a save that is dropped is a later miss, nothing more."""
        return False

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        self._scheduler.bind(gpu_block_pool)

    def on_new_request(self, request: Any) -> None:
        if request.kv_transfer_params:
            self._scheduler.arrived(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        return self._scheduler.match(request, num_computed_tokens)

    def get_external_cache_hit_sources(self, request: Any, num_external_tokens: int) -> dict[CacheHitSource, int]:
        return self._scheduler.hit_sources(request, num_external_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._scheduler.allocated(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return SidecarMetadata(self._scheduler.commands(scheduler_output))

    def update_connector_output(self, connector_output: Any) -> None:
        report = connector_output.kv_connector_worker_meta
        if isinstance(report, SidecarWorkerMetadata):
            self._scheduler.report(report)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        # Jobs hold the blocks they read, so the request's own can go at once.
        self._scheduler.finished(request)
        return False, None

    def register_finished_partial_tail(
        self, request: Any, block_ids: tuple[list[int], ...], partial_tail_offloads: list[tuple[int, int, int]]
    ) -> bool:
        return self._scheduler.finished_tail(request, block_ids, partial_tail_offloads)

    def has_pending_push_work(self) -> bool:
        return self._scheduler.pending

    def reset_cache(self) -> bool | None:
        if self._scheduler is None:
            return None
        if self._settings.keep_on_reset:
            logger.info("the engine resets its caches; what is stored is kept, as keep_on_reset says")
            return True
        return self._scheduler.reset()

    def take_events(self) -> Iterable[Any]:
        return self._events.take() if self._events is not None else ()

    # ---- worker role ----

    def get_mem_pool_context(self) -> AbstractContextManager[Any] | None:
        if self._role != KVConnectorRole.WORKER:
            return None
        device_type = self._vllm_config.device_config.device_type
        if device_type == "cuda" and not gpusleep.may_go(self._vllm_config.model_config):
            from vllm.device_allocator import alloc_conf

            return gpumem.plain_allocation(alloc_conf)
        if device_type != "cpu":
            return None
        self._allocation = MemfdAllocation({tensor.size for tensor in self._kv_cache_config.kv_cache_tensors})
        return self._allocation

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        from vllm.distributed import parallel_state

        shared = self._allocation.regions if self._allocation is not None else []
        if self._allocation is not None and not shared:
            logger.warning("the KV cache was not allocated as expected: the daemon will reach into this process for it")
        sizes = namespace.parallel_sizes(self._vllm_config)
        ranks = namespace.Ranks(
            sizes.tp,
            sizes.pp,
            sizes.pcp,
            sizes.dcp,
            tp_rank=parallel_state.get_tensor_model_parallel_rank(),
            pp_rank=parallel_state.get_pp_group().rank_in_group,
            pcp_rank=parallel_state.get_pcp_group().rank_in_group if sizes.pcp > 1 else 0,
        )
        world = parallel_state.get_world_group()
        try:
            describe_memory, gpu_events, device = self._share(kv_caches, shared, world.local_rank)
            memory = describe_memory()
        except UnsupportedLayout as error:
            logger.warning("running without the KV store: %s", error)
            self._worker = self._make_worker(lambda: None, world.rank, None)
            return
        self._presence = Presence(
            describe_memory,
            lambda memory, epoch: Registrant(
                self._settings,
                self._geometry,
                ranks,
                memory,
                num_blocks=self._kv_cache_config.num_blocks,
                engine_id=self._engine_id,
                epoch=epoch,
                device=device,
            ).connect,
            waits_s=_WORKER_WAITS_S,
            patience_s=self._settings.fence_kill_after_s,
        )
        self._worker = self._make_worker(self._presence.take, world.rank, gpu_events)
        self._presence.role = self._worker
        if device.startswith("cuda") and gpusleep.may_go(self._vllm_config.model_config):
            try:
                self._watch = self._watch_sleep(memory)
            except UnsupportedLayout as error:
                logger.warning("running without the KV store: %s", error)
                memory.close()
                return
        self._presence.start(memory, self._epoch)

    def _watch_sleep(self, memory: Memory) -> gpusleep.Watch:
        """Notice when vLLM takes the KV cache away.

        Raises:
            UnsupportedLayout: that can't be noticed.
        """
        try:
            from vllm.device_allocator import get_mem_allocator_instance

            allocator = get_mem_allocator_instance()
        except Exception as error:
            raise gpusleep.refuse(f"this vLLM's allocator is not where it is expected ({error!r})") from error
        backend = getattr(self._vllm_config.model_config, "sleep_mode_backend", "cumem")
        return gpusleep.Watch(allocator, backend, memory, self._presence)

    def _share(
        self, kv_caches: dict[str, Any], shared: list[Any], local_rank: int
    ) -> tuple[Callable[[], Memory], Any, str]:
        """What describes the KV memory, the events that tell when a GPU is through, and the daemon's device name.

        Raises:
            UnsupportedLayout: the memory can't be shared.
        """
        config, groups, cut = self._kv_cache_config, len(self._geometry.spec.groups), self._geometry.cut
        if self._vllm_config.device_config.device_type != "cuda":
            return lambda: describe(kv_caches, config, shared, groups, cut), None, f"host-{local_rank}"
        import torch

        try:
            driver = gpumem.Driver()
        except OSError as error:
            raise UnsupportedLayout(f"the CUDA driver can't be asked for handles: {error}") from error
        index = torch.cuda.current_device()
        uuid = gpumem.device_uuid(torch, index)
        name = gpunames.device_name(index, os.environ.get("CUDA_VISIBLE_DEVICES"), uuid)
        made = gpuevents.make(torch)
        handles = made.handles if isinstance(made, gpuevents.EventRing) else []

        def describe_now() -> Memory:
            memory = describe(kv_caches, config, shared, groups, cut, driver)
            return replace(memory, device_uuid=uuid, events=handles)

        return describe_now, made, name

    def _make_worker(self, take_link: Any, rank: int, gpu_events: Any) -> WorkerRole:
        return WorkerRole(
            take_link,
            rank=rank,
            events=gpu_events,
            by_block=self._by_block,
            idle_wait_s=self._idle_wait_s(),
            on_cpu=self._vllm_config.device_config.device_type == "cpu",
            sync=self._sync_tokens() > 0 and self._by_itself(),
            count=self._stats.add,
            note=Jobs(self._stats),
        )

    def _idle_wait_s(self) -> float:
        if self._vllm_config.parallel_config.data_parallel_size > 1:
            return 0.0  # other engines compute in lock-step with this one
        # As many steps may lie before the one that a new request comes in.
        return IDLE_WAIT_S / self._vllm_config.max_concurrent_batches

    def _sync_tokens(self) -> int:
        """The longest load that may be synchronous, 0 for none: what ``SyncLoads`` requires of an engine."""
        config, cache = self._vllm_config, self._kv_cache_config
        if (
            self._settings.load_async
            or config.device_config.device_type != "cpu"
            or config.parallel_config.world_size > 1
            or config.parallel_config.data_parallel_size > 1  # other engines compute in lock-step with this one
            or config.max_concurrent_batches > 1
            or config.use_v2_model_runner
            or config.speculative_config is not None
            or not self._by_block
            or self._geometry.fine
            or cache.needs_kv_cache_zeroing  # behind ``handle_preemptions``
        ):
            return 0
        block_bytes = sum(tensor.size for tensor in cache.kv_cache_tensors) // cache.num_blocks
        return SYNC_LOAD_BYTES // block_bytes * self._geometry.block_tokens[0]

    def _by_itself(self) -> bool:
        """No other connector of this engine stores what a step has computed behind a load of ours that failed."""
        return kv_transfer.has_kv_transfer_group() and kv_transfer.get_kv_transfer_group() is self

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """Called at the beginning of each step: a load that the step waits for runs while its inputs are prepared."""
        if (
            self._worker is not None
            and isinstance(kv_connector_metadata, SidecarMetadata)
            and kv_connector_metadata.commands.sync is not None
        ):
            self._worker.send_loads(kv_connector_metadata.commands)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        if (metadata := self._step()) is not None:
            self._worker.start_loads(metadata.commands)

    def wait_for_layer_load(self, layer_name: str) -> None:
        return  # a load that the step reads is over, others end between steps

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        return  # whole steps are saved

    def wait_for_save(self) -> None:
        if (metadata := self._step()) is not None:
            self._worker.start_stores(metadata.commands)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        return None, self.get_transfer_results(finished_req_ids).finished_recving or None

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        if self._worker is None:
            return KVConnectorTransferResults()
        found = self._worker.poll()
        return KVConnectorTransferResults(set(), found.received, found.failed)

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._worker.take_bad_blocks() if self._worker is not None else set()

    def build_connector_worker_meta(self) -> SidecarWorkerMetadata | None:
        report = self._worker.take_report() if self._worker is not None else None
        return SidecarWorkerMetadata(**vars(report)) if report is not None else None

    def _step(self) -> SidecarMetadata | None:
        metadata = self._connector_metadata
        return metadata if isinstance(metadata, SidecarMetadata) and self._worker is not None else None

    # ---- both ----

    def get_kv_connector_stats(self) -> SidecarStats | None:
        if self._lookup is not None:
            counters = self._lookup.counters
            now = (counters.timeouts, counters.skipped, counters.malformed)
            if now != self._counted:
                for name, new, old in zip(("timeouts", "skipped", "malformed"), now, self._counted, strict=True):
                    if new != old:
                        self._stats.add(f"lookup_{name}", new - old)
                self._counted = now
        return self._stats.take()

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> SidecarStats:
        return SidecarStats(data)

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> SidecarPromMetrics:
        return SidecarPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        """End threads and sessions; the daemons see EOF."""
        if getattr(self, "_closed", True):
            return
        self._closed = True
        if self._watch is not None:
            self._watch.close()
        if self._presence is not None:
            self._presence.close()
        if self._worker is not None:
            self._worker.close()
        if self._allocation is not None:
            self._allocation.close()
        if self._registrar is not None:
            self._registrar.stop()
        if self._follower is not None:
            self._follower.close()
        if self._lookup is not None:
            self._lookup.close()
