"""vLLM's real Scheduler around our connector, with a model and workers that are made up."""

import json

import torch
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVTransferConfig,
    ModelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from mooncake_sidecar.lookup import MISS, Hit
from mooncake_sidecar.metadata import SidecarWorkerMetadata

BLOCK = 16


class StubLookup:
    """Answers what the test has put into ``hits``; request -> tokens, None for pending."""

    def __init__(self):
        self.hits = {}
        self.lasting = False
        self.tiers = ()
        self.asked = []
        self.resets = 0
        self.generation = 7
        self.counters = type("C", (), {"lookups": 0, "timeouts": 0, "skipped": 0, "malformed": 0})()

    def ask(self, request_id, num_tokens, hashes):
        self.asked.append((request_id, num_tokens, len(hashes)))
        tokens = self.hits.get(request_id, 0)
        return None if tokens is None else Hit(tokens, tiers=self.tiers, lasting=self.lasting) if tokens else MISS

    def new_step(self):
        pass

    def discard(self, request_id):
        self.hits.pop(request_id, None)

    def reset(self):
        self.resets += 1
        self.generation += 1
        return True

    def close(self):
        pass


def write_model(path):
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 128,
        "max_position_embeddings": 8192, "torch_dtype": "float32", "hidden_act": "silu", "rms_norm_eps": 1e-5,
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


def kv_config(num_blocks, layers=2):
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=16, dtype=torch.float32)
    page = spec.page_size_bytes
    names = [f"layer.{i}" for i in range(layers)]
    tensor = KVCacheTensor(
        size=page * num_blocks * layers, layers=names, layer_stride=page * num_blocks, block_stride=page
    )
    return KVCacheConfig(
        num_blocks=num_blocks,
        kv_cache_tensors=[tensor],
        kv_cache_groups=[KVCacheGroupSpec(names, spec)],
        kv_cache_layout="LBHNC",
        hash_block_size=BLOCK,
        cache_hit_alignment_tokens=BLOCK,
    )


def vllm_config(
    model, num_blocks, runtime_dir, role="kv_both", budget=64, seqs=8, mamba_cache_mode="none", **extra
):
    cache = CacheConfig(block_size=BLOCK, enable_prefix_caching=True, mamba_cache_mode=mamba_cache_mode)
    cache.num_gpu_blocks = num_blocks
    return VllmConfig(
        model_config=ModelConfig(model=model, skip_tokenizer_init=True, max_model_len=4096, seed=0),
        cache_config=cache,
        device_config=DeviceConfig("cpu"),
        scheduler_config=SchedulerConfig(
            max_num_seqs=seqs,
            max_num_batched_tokens=budget,
            max_model_len=4096,
            enable_chunked_prefill=True,
            is_encoder_decoder=False,
            async_scheduling=False,
        ),
        kv_transfer_config=KVTransferConfig(
            kv_connector="MooncakeSidecarConnector",
            kv_connector_module_path="mooncake_sidecar.connector",
            kv_role=role,
            kv_load_failure_policy="recompute",
            kv_connector_extra_config={"autostart": False, "runtime_dir": runtime_dir, **extra},
        ),
    )


class Engine:
    """Steps the scheduler; the test plays the workers."""

    def __init__(self, model, runtime_dir, num_blocks=200, kv=None, **config):
        self.config = vllm_config(model, num_blocks, runtime_dir, **config)
        kv = kv or kv_config(num_blocks)
        init_none_hash(sha256)
        self.scheduler = Scheduler(
            vllm_config=self.config,
            kv_cache_config=kv,
            structured_output_manager=StructuredOutputManager(self.config),
            block_size=BLOCK,
            hash_block_size=BLOCK,
            log_stats=True,
        )
        self.connector = self.scheduler.connector
        self.lookup = StubLookup()
        self.connector._scheduler._lookup = self.lookup
        self.pool = self.scheduler.kv_cache_manager.block_pool
        self.hasher = get_request_block_hasher(BLOCK, sha256)
        self.commands = None
        self.running_stores = []
        self.running_loads = {}

    def add(self, name, tokens, max_tokens=4, seed=0, resumable=False, **params):
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True, extra_args=params or None)
        sampling.update_from_generation_config({}, 1)
        request = Request(
            name, [(seed * 7919 + i) % 100 for i in range(tokens)], sampling, None, block_hasher=self.hasher,
            resumable=resumable,
        )  # fmt: skip
        self.scheduler.add_request(request)
        return request

    def step(self, received=(), bad=(), acknowledge=True, ready=None, renewed=False, failed=(), incomplete=(), accepted=None, sync=None):
        """One step. All stores sent so far are acknowledged, unless told otherwise; ``accepted`` drafts by request."""
        output = self.scheduler.schedule()
        self.output = output
        self.commands = output.kv_connector_metadata.commands
        self.running_stores += [c.job for c in self.commands.stores]
        self.running_loads.update({c.request: c for c in self.commands.loads})
        done = {}
        if acknowledge:
            done = dict.fromkeys(self.running_stores, 1)
            self.running_stores = []
        report = SidecarWorkerMetadata(done, set(failed), ready or {}, dict(incomplete), renewed, sync)
        names = list(output.num_scheduled_tokens)
        sampled = []
        for name in names:
            request = self.scheduler.requests[name]
            end = request.num_computed_tokens >= request.num_tokens
            sampled.append([5] * (1 + (accepted or {}).get(name, 0)) if end else [])
        outcome = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=sampled,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
            kv_connector_output=KVConnectorOutput(
                finished_recving=set(received) or None,
                failed_recving=set() if self.connector._by_block else set(failed),
                invalid_block_ids=set(bad),
                kv_connector_worker_meta=report,
            ),
        )
        self.scheduler.update_from_output(output, outcome)
        return self.commands

    def drain(self, steps=200):
        while self.scheduler.has_requests() and steps:
            steps -= 1
            self.step()
        assert steps, "the engine does not come to rest"

    def used(self):
        """Blocks that someone holds a reference on (the null block aside)."""
        return sum(1 for block in self.pool.blocks if block.ref_cnt and not block.is_null)
