"""vLLM's real scheduler around the pair, with made-up model outputs."""

from collections import deque
from dataclasses import dataclass
from random import Random
from typing import Any

from vllm.config import CacheConfig, DeviceConfig, KVTransferConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import (
    get_request_block_hasher,
    init_none_hash,
    resolve_cache_hit_alignment_tokens,
    resolve_kv_cache_block_sizes,
)
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from mooncake_sidecar.metadata import SidecarWorkerMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.data import MooncakeStoreWorkerMetadata

from .compare import Comparison
from .pair import PairReport
from .ranks import Done, Rank

WAITING_FOR_LOAD = RequestStatus.WAITING_FOR_REMOTE_KVS


def configuration(path, runtime_dir, model, case):
    """The ``VllmConfig`` and ``KVCacheConfig`` as the engine core would resolve them."""
    kv = model.kv_config(case.num_blocks)
    sizes = [group.kv_cache_spec.block_size for group in kv.kv_cache_groups]
    # vLLM ends chunks at multiples of this; with recurrent state they must end where states are named.
    cache = CacheConfig(block_size=max(sizes) if model.recurrent else min(sizes), enable_prefix_caching=True)
    cache.num_gpu_blocks = case.num_blocks
    cache.mamba_cache_mode = "align" if model.recurrent else cache.mamba_cache_mode
    cache.prefix_match_unit = model.unit
    config = VllmConfig(
        model_config=ModelConfig(model=path, skip_tokenizer_init=True, max_model_len=2048, seed=0),
        cache_config=cache,
        device_config=DeviceConfig("cpu"),
        scheduler_config=SchedulerConfig(
            max_num_seqs=case.seqs,
            max_num_batched_tokens=case.budget,
            max_model_len=2048,
            enable_chunked_prefill=True,
            is_encoder_decoder=False,
            async_scheduling=False,
        ),
        kv_transfer_config=KVTransferConfig(
            kv_connector="PairConnector",
            kv_connector_module_path="differential.pair",
            kv_role=case.role,
            engine_id="ours" if case.leads_ours else "in-tree",
            kv_load_failure_policy="recompute",
            kv_connector_extra_config={
                "save_decode_cache": case.save_decode,
                "lookup_async": case.lookup_async,
                # Keys of ours: no daemon is to be started.
                "autostart": False,
                "runtime_dir": runtime_dir,
            },
        ),
    )
    config.parallel_config.world_size = case.ranks
    config.speculative_config = model.speculation()
    scheduler_block, unit = resolve_kv_cache_block_sizes(kv, config)
    kv.hash_block_size = unit
    kv.cache_hit_alignment_tokens = resolve_cache_hit_alignment_tokens(kv, config, scheduler_block, unit)
    return config, kv, scheduler_block, unit


@dataclass
class Step:
    """A scheduled step that the made-up workers have yet to run."""

    output: Any
    loads: dict
    jobs: list
    samples: set[str]
    """Requests of which it comes to the last token, so that the model gives the next."""


class Engine:
    """Steps the scheduler; model and workers follow ``random``."""

    def __init__(self, path, runtime_dir, case):
        self.case = case
        self.random = Random(case.seed)
        init_none_hash(sha256)
        config, kv, self.block, self.unit = configuration(path, runtime_dir, case.model, case)
        config.scheduler_config.async_scheduling = case.asynchronous
        self.scheduler = (AsyncScheduler if case.asynchronous else Scheduler)(
            vllm_config=config,
            kv_cache_config=kv,
            structured_output_manager=StructuredOutputManager(config),
            block_size=self.block,
            hash_block_size=self.unit,
            log_stats=True,
        )
        self.scheduler.use_v2_model_runner = case.second_runner
        self.pair = self.scheduler.connector
        self.notes = self.pair.notes
        self.align = kv.cache_hit_alignment_tokens
        self.groups = len(kv.kv_cache_groups)
        sizes = [group.kv_cache_spec.block_size for group in kv.kv_cache_groups]
        self.capacity = int((case.num_blocks - 12) / sum(1 / size for size in sizes))
        """Tokens of a request that fits in the pool for certain."""
        self.pool = self.scheduler.kv_cache_manager.block_pool
        self.ranks = [Rank(i, self.pair.ours._geometry, self.notes) for i in range(case.ranks)]
        self.comparison = Comparison(self.pair, case.ranks)
        self.loading = {}
        """Request -> its load and the steps it still takes."""
        self.in_flight: deque[Step] = deque()
        self._hasher = get_request_block_hasher(self.unit, sha256)

    def add(self, name, tokens, max_tokens):
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        sampling.update_from_generation_config({}, 1)
        self.scheduler.add_request(Request(name, tokens, sampling, None, block_hasher=self._hasher))

    def step(self, calm=False):
        """One step. ``calm``: nothing fails any more and the ranks catch up."""
        output = self.scheduler.schedule()
        loads, jobs = self.comparison.step(output, output.kv_connector_metadata)
        scheduled = output.num_scheduled_tokens
        self.notes.failed -= scheduled.keys()
        self._note(output, loads)
        samples = {name for name in scheduled if not self.scheduler.requests[name].is_prefill_chunk}
        self.in_flight.append(Step(output, loads, jobs, samples))
        if len(self.in_flight) > self.case.asynchronous:
            self._run(self.in_flight.popleft(), calm)

    def catch_up(self):
        """Run what was scheduled."""
        while self.in_flight:
            self._run(self.in_flight.popleft(), calm=True)

    def _run(self, step, calm):
        """What the workers do in a step, and its outcome."""
        output, loads, jobs = step.output, step.loads, step.jobs
        for rank in self.ranks:
            rank.forget(output.preempted_req_ids or ())
        for job in jobs:
            for rank in self.ranks:
                rank.take(job)
        for request, load in loads.items():
            self.loading[request] = [load, 0 if calm else self.random.randint(0, 4)]
        done = Done()
        for rank in self.ranks:
            rank.work(
                50 if calm else self.random.choice((0, 0, 1, 2, 5)),
                lambda: not calm and self.random.random() < self.case.failures,
                self.pair.our_pool,
                self.pair.their_pool,
                done,
            )
        received, failed, bad = self._loads(calm)
        outcome = self._model(step)
        outcome.kv_connector_output = KVConnectorOutput(
            finished_recving=received or None,
            failed_recving=failed if self.groups > 1 else set(),
            invalid_block_ids=bad,
            kv_connector_worker_meta=PairReport(
                SidecarWorkerMetadata(dict(done.ours), failed, {}, done.incomplete),
                MooncakeStoreWorkerMetadata(dict(done.theirs)),
            ),
        )
        self.scheduler.update_from_output(output, outcome)
        self._draft(outcome)
        self.comparison.held(done)

    def _loads(self, calm):
        received, failed, bad = set(), set(), set()
        for request, waiting in list(self.loading.items()):
            load, steps = waiting
            if steps:
                waiting[1] = steps - 1
                continue
            del self.loading[request]
            received.add(request)
            alive = not self.scheduler.requests[request].is_finished()
            if not calm and self.random.random() < self.case.failures:
                failed.add(request)
                if alive:
                    self.notes.failed.add(request)
                    self.notes.seen["a load failed"] += 1
                if self.groups == 1:
                    size = self.block
                    blocks = load.tables[0][load.local_tokens // size :]
                    bad |= set(blocks[self.random.randrange(len(blocks)) :])
            if not alive:
                self.notes.seen["aborted while loading"] += 1
        return received, failed, bad

    def _model(self, step):
        names, sampled = list(step.output.num_scheduled_tokens), []
        for name in names:
            if name not in step.samples:
                sampled.append([])
                continue
            drafts = len(step.output.scheduled_spec_decode_tokens.get(name, ()))
            accepted = self.random.randint(0, drafts)
            if accepted:
                self.notes.seen["drafts accepted"] += 1
            if accepted < drafts:
                self.notes.seen["drafts rejected"] += 1
            sampled.append([self.random.randrange(100) for _ in range(accepted + 1)])
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=sampled,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )

    def _draft(self, outcome):
        if not self.case.model.drafts or self.case.asynchronous:  # then there are placeholders
            return
        names = [n for n, tokens in zip(outcome.req_ids, outcome.sampled_token_ids, strict=True) if tokens]
        drafts = [
            [self.random.randrange(100) for _ in range(self.random.randint(0, self.case.model.drafts))] for _ in names
        ]
        self.scheduler.update_draft_token_ids(DraftTokenIds(names, drafts))

    def _note(self, output, loads):
        seen, scheduled = self.notes.seen, output.num_scheduled_tokens
        seen["steps"] += 1
        seen["steps while one is in flight"] += len(self.in_flight)
        seen["loads"] += len(loads)
        for request in output.preempted_req_ids or ():
            seen["preempted"] += 1
            if any(job.theirs.request == request for rank in self.ranks for job in rank._queue):
                seen["preempted while a save is pending"] += 1
        for request in loads:
            if self.scheduler.requests[request].num_preemptions:
                seen["a resumed request loads"] += 1
        if any(self.scheduler.requests[r].is_prefill_chunk for r in scheduled):
            seen["chunks of a prompt"] += 1

    def abort(self, name):
        request = self.scheduler.requests.get(name)
        if request is not None and not request.is_finished():
            self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
            self.notes.seen["aborted"] += 1

    def abort_at_checkpoint(self):
        """Abort a request whose prefill has just come to its reusable state: the tail is then finished with it."""
        for name, request in self.scheduler.requests.items():
            if request.is_prefill_chunk and request.num_computed_tokens % self.block:
                self.abort(name)
                return

    def reset(self, running):
        before = self.notes.store.resets
        try:
            self.scheduler.reset_prefix_cache(reset_running_requests=running, reset_connector=True)
        except RuntimeError as error:  # vLLM: blocks are still in use, by a load or a save
            assert "Failed to reset KV cache" in str(error)
            return
        finally:
            if self.notes.store.resets > before:
                self.comparison.reset()
        self.notes.seen["resets"] += 1

    def is_stuck_in_vllm(self):
        """vLLM's own dead end: a request whose load failed has given up its blocks and finds no others, and
        behind it in the queue of requests that hold blocks waits one whose load has ended as well."""
        waiting = [request.request_id for request in self.scheduler.kv_holding_waiting]
        stuck = (
            not self.scheduler.running
            and not self.loading
            and any(name in self.scheduler.finished_recving_kv_req_ids for name in waiting[1:])
        )
        self.notes.seen["vLLM's own dead end"] += stuck
        return stuck

    def used(self):
        """Blocks that someone holds (the null block aside)."""
        return sum(1 for block in self.pool.blocks if block.ref_cnt and not block.is_null)
