"""Both roles of a connector around vLLM's real scheduler, in one process, without a model.

Workers are called in the order of vLLM's own runner. Every hook has a stopwatch; a step's times are kept by role.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import time

import torch
from vllm.config import CacheConfig, DeviceConfig, KVTransferConfig, ModelConfig, SchedulerConfig, VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash, resolve_kv_cache_block_sizes
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheLayout, KVCacheTensor, SlidingWindowSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.worker.utils import allocate_kv_cache

SCHEDULER_HOOKS = (
    "on_new_request get_num_new_matched_tokens get_loaded_kv_cache_group_ids update_state_after_alloc get_external_cache_hit_sources "
    "has_pending_block_frees build_connector_meta update_connector_output request_finished request_finished_all_groups take_events "
    "has_pending_push_work get_kv_connector_stats"
).split()
WORKER_HOOKS = (
    "handle_preemptions bind_connector_metadata start_load_kv wait_for_save get_transfer_results get_block_ids_with_load_errors "
    "get_kv_connector_stats get_kv_connector_kv_cache_events build_connector_worker_meta clear_connector_metadata"
).split()
LONGEST = 1 << 18
BUDGET = 8192


@dataclasses.dataclass(frozen=True)
class Case:
    """What an engine runs with."""

    block: int
    window: bool
    """A second group, of sliding windows."""
    save_decode: bool

    @property
    def name(self) -> str:
        return f"{self.block}-token blocks, {'2 groups' if self.window else '1 group'}{', save_decode_cache' if self.save_decode else ''}"


def write_model(path: pathlib.Path) -> str:
    """The configuration of a model that is never loaded."""
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 1 << 15, "max_position_embeddings": LONGEST,
        "torch_dtype": "float32", "hidden_act": "silu", "rms_norm_eps": 1e-5,
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


def start_process(path: pathlib.Path) -> None:
    """What vLLM sets up once in a worker process."""
    with set_current_vllm_config(VllmConfig(device_config=DeviceConfig("cpu"))):
        parallel_state.init_distributed_environment(1, 0, f"file://{path / 'rendezvous'}", 0, "gloo")
        parallel_state.initialize_model_parallel(1, 1)
    init_none_hash(sha256)


class Stopwatch:
    """Nanoseconds by hook since the last take; a hook that calls a hook counts once."""

    def __init__(self, clock=time.perf_counter_ns):
        self._clock = clock
        self._times: dict[str, int] = {}
        self._depth = 0

    def wrap(self, connector, names) -> None:
        for name in names:
            setattr(connector, name, self._timed(name, getattr(connector, name)))

    def _timed(self, name, method):
        def timed(*args, **kwargs):
            self._depth += 1
            begin = self._clock()
            try:
                return method(*args, **kwargs)
            finally:
                spent = self._clock() - begin
                self._depth -= 1
                if not self._depth:
                    self._times[name] = self._times.get(name, 0) + spent

        return timed

    def take(self) -> dict[str, int]:
        taken, self._times = self._times, {}
        return taken


class System:
    """An engine with one connector."""

    def __init__(self, connector: str, module: str | None, model: str, case: Case, cpu: bool = False, **extra: object):
        self._cpu = cpu
        num_blocks = (64 if case.window else 32) * 1024 * 16 // case.block
        sizes = {"block_size": case.block, "num_kv_heads": 1, "head_size": 8, "dtype": torch.float32}
        specs = [FullAttentionSpec(**sizes)] + [SlidingWindowSpec(**sizes, sliding_window=4 * case.block)] * case.window
        page = specs[0].page_size_bytes
        tensors, groups = [], []
        for index, spec in enumerate(specs):
            names = [f"layers.{2 * index + i}" for i in range(2)]
            tensors.append(KVCacheTensor(size=2 * page * num_blocks, layers=names, layer_stride=page * num_blocks, block_stride=page))
            groups.append(KVCacheGroupSpec(names, spec))
        self.kv = KVCacheConfig(num_blocks=num_blocks, kv_cache_tensors=tensors, kv_cache_groups=groups, kv_cache_layout="LBHNC")
        cache = CacheConfig(block_size=case.block, enable_prefix_caching=True)
        cache.num_gpu_blocks = num_blocks
        self.config = VllmConfig(
            model_config=ModelConfig(model=model, skip_tokenizer_init=True, max_model_len=LONGEST, seed=0),
            cache_config=cache,
            device_config=DeviceConfig("cpu"),
            scheduler_config=SchedulerConfig(
                max_num_seqs=320, max_num_batched_tokens=BUDGET, max_model_len=LONGEST, enable_chunked_prefill=True,
                is_encoder_decoder=False, async_scheduling=False,
            ),  # fmt: skip
            kv_transfer_config=KVTransferConfig(
                kv_connector=connector, kv_connector_module_path=module, kv_role="kv_both", kv_load_failure_policy="recompute",
                kv_connector_extra_config={"save_decode_cache": case.save_decode, **extra},
            ),  # fmt: skip
        )
        scheduler_block, unit = resolve_kv_cache_block_sizes(self.kv, self.config)
        self.kv.hash_block_size, self.kv.cache_hit_alignment_tokens = unit, scheduler_block
        self._hasher = get_request_block_hasher(unit, sha256)
        self._start(scheduler_block, unit)

    def _start(self, scheduler_block: int, unit: int) -> None:
        with set_current_vllm_config(self.config):
            self.worker = KVConnectorFactory.create_connector(self.config, KVConnectorRole.WORKER, self.kv)
            pool = self.worker.get_mem_pool_context()
            if pool is None:
                caches = allocate_kv_cache(self.kv, torch.device("cpu"), KVCacheLayout["LBHNC"])
            else:
                with pool:
                    caches = allocate_kv_cache(self.kv, torch.device("cpu"), KVCacheLayout["LBHNC"])
            self.worker.register_kv_caches(caches)
            self.scheduler = Scheduler(
                vllm_config=self.config, kv_cache_config=self.kv, structured_output_manager=StructuredOutputManager(self.config),
                block_size=scheduler_block, hash_block_size=unit, log_stats=True,
            )  # fmt: skip
        clock = time.thread_time_ns if self._cpu else time.perf_counter_ns
        self.times = {"scheduler": Stopwatch(clock), "worker": Stopwatch(clock)}
        self.times["scheduler"].wrap(self.scheduler.connector, SCHEDULER_HOOKS)
        self.times["worker"].wrap(self.worker, WORKER_HOOKS)

    def prepare(self, name: str, tokens: list[int], max_tokens: int) -> Request:
        """A request with its hashes, which are no part of any hook."""
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        sampling.update_from_generation_config({}, 1)
        return Request(name, tokens, sampling, None, block_hasher=self._hasher)

    def add(self, request: Request) -> None:
        self.scheduler.add_request(request)

    def abort(self, name: str) -> None:
        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def step(self) -> dict[str, dict[str, int]]:
        """One engine step. Returns nanoseconds by role and hook since the step before."""
        self.scheduler.has_requests()
        output = self.scheduler.schedule()
        result = self._work(output)
        names = list(output.num_scheduled_tokens)
        requests = self.scheduler.requests
        ends = [requests[n].num_computed_tokens >= requests[n].num_tokens for n in names]
        self.scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=names, req_id_to_index={n: i for i, n in enumerate(names)}, kv_connector_output=result,
                sampled_token_ids=[[5 + i % 100] if end else [] for i, end in enumerate(ends)],
            ),  # fmt: skip
        )
        return {role: watch.take() for role, watch in self.times.items()}

    def _work(self, output) -> KVConnectorOutput:
        worker, result = self.worker, KVConnectorOutput()
        worker.handle_preemptions(output.kv_connector_metadata)
        worker.bind_connector_metadata(output.kv_connector_metadata)
        worker.start_load_kv(None)
        worker.wait_for_save()
        moved = worker.get_transfer_results(output.finished_req_ids)
        result.finished_sending, result.finished_recving, result.failed_recving = moved.finished_sending, moved.finished_recving, moved.failed_recving
        result.invalid_block_ids = worker.get_block_ids_with_load_errors()
        result.kv_connector_stats = worker.get_kv_connector_stats()
        result.kv_cache_events = worker.get_kv_connector_kv_cache_events()
        result.kv_connector_worker_meta = worker.build_connector_worker_meta()
        worker.clear_connector_metadata()
        return result

    def close(self) -> None:
        self.scheduler.shutdown()
        self.worker.shutdown()
