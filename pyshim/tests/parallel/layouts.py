"""Engines by their parallel sizes and kinds of attention, configured as vLLM's core would."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVTransferConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.distributed.utils import get_pp_indices
from vllm.v1.core.kv_cache_utils import (
    generate_scheduler_kv_cache_config,
    get_kv_cache_configs,
    resolve_cache_hit_alignment_tokens,
    resolve_kv_cache_block_sizes,
)
from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec

from mooncake_sidecar.namespace import Ranks

BLOCK = 16  # tokens that a rank holds of a block
LAYERS = 4
HEAD = 4
BLOCKS = 64
WINDOW = 40


@dataclass(frozen=True)
class Layout:
    """Parallel sizes, and what a layer's cache is."""

    name: str
    tp: int = 1
    pp: int = 1
    pcp: int = 1
    dcp: int = 1
    interleave: int = 1
    """``cp_kv_cache_interleave_size``: tokens in a row that a DCP rank holds."""
    heads: int = 4
    """KV heads of the model."""
    kind: str = "full"
    """Of all layers, or ``window``: of every second one."""
    memory: str = "LBHNC"
    """The KV-cache layout."""
    store_tp: int = 0
    """``store_tp_size``."""

    @property
    def block(self) -> int:
        """Tokens of a block of the engine's."""
        return BLOCK * self.dcp

    @property
    def ranks(self) -> list[Ranks]:
        """Places in the order of vLLM's world."""
        return [
            Ranks(self.tp, self.pp, self.pcp, self.dcp, tp, pp, pcp)
            for pp in range(self.pp)
            for pcp in range(self.pcp)
            for tp in range(self.tp)
        ]

    def dcp_rank(self, place: Ranks) -> int:
        """As vLLM forms its groups: along the prefill-context ranks first."""
        return (place.tp_rank * self.pcp + place.pcp_rank) % self.dcp

    def heads_of(self, place: Ranks) -> range:
        """KV heads that a rank holds: its part of them, or one that others hold too."""
        if self.kind == "mla":
            return range(1)
        each = max(1, self.heads // self.tp)
        first = place.tp_rank * self.heads // self.tp
        return range(first, first + each)

    def specs(self, place: Ranks) -> dict[str, object]:
        """KV-cache spec of each layer of a rank's pipeline stage."""
        first, end = get_pp_indices(LAYERS, place.pp_rank, self.pp)
        return {f"layers.{i}.attn": self._spec(i, place) for i in range(first, end)}

    def _spec(self, layer: int, place: Ranks):
        if self.kind == "mla":
            return MLAAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=2 * HEAD, dtype=torch.float32)
        common = {"block_size": BLOCK, "num_kv_heads": len(self.heads_of(place)), "head_size": HEAD, "dtype": torch.float32}
        if self.kind == "window" and layer % 2:
            return SlidingWindowSpec(sliding_window=WINDOW, dcp_sharded=False, **common)
        return FullAttentionSpec(**common)


@dataclass
class Configured:
    """What the core hands out: the configuration, the scheduler's KV cache, and each rank's."""

    config: VllmConfig
    scheduler: object
    ranks: list
    block_sizes: tuple[int, int]
    """(scheduler block, hash block) in tokens."""


def write_model(path: Path, layout: Layout) -> str:
    """A model that no one loads. Returns its path, one for each number of heads."""
    path = path / f"model-{layout.heads}"
    if not path.exists():
        path.mkdir()
        config = {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 128, "intermediate_size": 64,
            "num_hidden_layers": LAYERS, "num_attention_heads": 8, "num_key_value_heads": layout.heads,
            "head_dim": 16, "vocab_size": 1024, "max_position_embeddings": 8192, "torch_dtype": "float32",
            "hidden_act": "silu", "rms_norm_eps": 1e-5,
        }  # fmt: skip
        (path / "config.json").write_text(json.dumps(config))
    return str(path)


def configure(layout: Layout, path: Path, budget: int, transfer: dict | None, data_parallel: int = 1) -> Configured:
    """Args:
    budget: tokens of a step.
    transfer: of ``KVTransferConfig``.
    """
    cache = CacheConfig(block_size=BLOCK, enable_prefix_caching=True, num_gpu_blocks_override=BLOCKS)
    cache.kv_cache_layout = layout.memory
    parallel = ParallelConfig(
        tensor_parallel_size=layout.tp,
        pipeline_parallel_size=layout.pp,
        decode_context_parallel_size=layout.dcp if layout.pcp == 1 else 1,
        cp_kv_cache_interleave_size=layout.interleave,
        data_parallel_size=data_parallel,
    )
    config = VllmConfig(
        model_config=ModelConfig(
            model=write_model(path, layout), skip_tokenizer_init=True, max_model_len=640, seed=0
        ),
        cache_config=cache,
        device_config=DeviceConfig("cpu"),
        parallel_config=parallel,
        scheduler_config=SchedulerConfig(
            max_num_seqs=8,
            max_num_batched_tokens=budget,
            max_model_len=640,
            enable_chunked_prefill=True,
            is_encoder_decoder=False,
            async_scheduling=False,
        ),
        kv_transfer_config=KVTransferConfig(**transfer) if transfer else None,
    )
    # "Model Runner V1 does not support: prefill context parallel", and the other needs Triton.
    parallel.prefill_context_parallel_size, parallel.decode_context_parallel_size = layout.pcp, layout.dcp
    parallel.world_size = layout.tp * layout.pp * layout.pcp
    ranks = get_kv_cache_configs(config, [layout.specs(place) for place in layout.ranks], [1 << 30] * len(layout.ranks))
    for kv in ranks:
        kv.kv_cache_layout = layout.memory
    scheduler = generate_scheduler_kv_cache_config(ranks)
    cache.num_gpu_blocks = scheduler.num_blocks
    sizes = resolve_kv_cache_block_sizes(scheduler, config)
    for kv in (scheduler, *ranks):
        kv.hash_block_size = sizes[1]
        kv.cache_hit_alignment_tokens = resolve_cache_hit_alignment_tokens(kv, config, *sizes)
    return Configured(config, scheduler, ranks, sizes)


LAYOUTS = [
    Layout("pp2", pp=2),
    Layout("pp2-window", pp=2, kind="window"),
    Layout("pp4-window", pp=4, kind="window"),  # stages have layers of one group only
    Layout("tp2-pp2", tp=2, pp=2),
    Layout("tp2-pp2-window", tp=2, pp=2, kind="window"),
    Layout("pcp2", pcp=2),
    Layout("pcp2-mla", pcp=2, kind="mla"),
    Layout("dcp2", tp=2, dcp=2, heads=1),
    Layout("dcp2-interleaved", tp=2, dcp=2, heads=1, interleave=4),
    Layout("dcp2-mla", tp=2, dcp=2, kind="mla", heads=1, interleave=16),
    Layout("dcp2-window", tp=2, dcp=2, heads=1, kind="window"),
    Layout("tp4-dcp2", tp=4, dcp=2, heads=2),
    Layout("tp4-replicas", tp=4, heads=2),
    Layout("tp4-replicas-token-major", tp=4, heads=2, memory="LBNHC"),
    Layout("tp2-window", tp=2, kind="window"),
    Layout("tp2-mla", tp=2, kind="mla", heads=1),
    Layout("tp2-blocks-outermost", tp=2, memory="BLHNC"),
    Layout("tp2-shared", tp=2, store_tp=4),
]
