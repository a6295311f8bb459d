"""Prints the KV-cache groups that the installed vLLM makes for real models.

The layers are written down from the models' published configurations; grouping,
page sizes, block sizes, the hash block and the hit alignment are vLLM's own. One
JSON object a line, in the fields of a coordinator case.
"""

import json
import os
import sys

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
lines = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

import torch  # noqa: E402

from vllm.config import VllmConfig  # noqa: E402
from vllm.v1 import kv_cache_interface as specs  # noqa: E402
from vllm.v1.core import kv_cache_utils as utils  # noqa: E402

KINDS = {
    specs.FullAttentionSpec: "full",
    specs.MLAAttentionSpec: "mla",
    specs.SlidingWindowSpec: "swa",
    specs.ChunkedLocalAttentionSpec: "chunked",
    specs.MambaSpec: "mamba",
}


def full(heads, size, block=16):
    return specs.FullAttentionSpec(block_size=block, num_kv_heads=heads, head_size=size, dtype=torch.bfloat16)


def window(heads, size, tokens, block=16):
    return specs.SlidingWindowSpec(
        block_size=block, num_kv_heads=heads, head_size=size, dtype=torch.bfloat16, sliding_window=tokens
    )


def chunked(heads, size, tokens):
    return specs.ChunkedLocalAttentionSpec(
        block_size=16, num_kv_heads=heads, head_size=size, dtype=torch.bfloat16, attention_chunk_size=tokens
    )


def mla(block=64):
    return specs.MLAAttentionSpec(block_size=block, num_kv_heads=1, head_size=576, dtype=torch.bfloat16)


def mamba(block, page):
    return specs.MambaSpec(
        block_size=block,
        shapes=((16, 64, 128), (3, 2304)),
        dtypes=(torch.float32, torch.bfloat16),
        mamba_cache_mode="align",
        page_size_padded=page,
    )


def layers(n, kind):
    return {f"model.layers.{i}": kind(i) for i in range(n)}


def hybrid(i):
    """Four attention layers in forty; attention blocks are grown to the state's page."""
    attention = full(8, 128, block=400)
    return attention if i % 10 == 5 else mamba(400, attention.page_size_bytes)


MODELS = {
    "llama-3.1-8b": (layers(32, lambda i: full(8, 128)), False, 0, 1),
    "llama-3.1-8b-dcp2": (layers(32, lambda i: full(8, 128)), False, 0, 2),
    "llama-3.1-8b-eagle3": (layers(33, lambda i: full(8, 128)), True, None, 1),
    "gemma-3-27b": (layers(62, lambda i: full(16, 128) if i % 6 == 5 else window(16, 128, 1024)), False, 0, 1),
    "gemma-3-27b-dense": (layers(62, lambda i: full(16, 128) if i % 6 == 5 else window(16, 128, 1024)), False, None, 1),
    "gpt-oss-20b": (layers(24, lambda i: window(8, 64, 128) if i % 2 == 0 else full(8, 64)), False, 0, 1),
    "gpt-oss-20b-eagle3": (layers(25, lambda i: window(8, 64, 128) if i % 2 == 0 and i < 24 else full(8, 64)), True, 0, 1),
    "deepseek-v3": (layers(61, lambda i: mla()), False, 0, 1),
    "llama-4-scout": (layers(48, lambda i: full(8, 128) if i % 4 == 3 else chunked(8, 128, 8192)), False, 0, 1),
    "granite-4-small": (layers(40, hybrid), False, 0, 1),
    "granite-4-small-unit-80": (layers(40, hybrid), False, 0, 1, 80),
}


def describe(name, kv_cache_spec, eagle, retention, dcp, unit=None):
    engine = VllmConfig()
    engine.cache_config.kv_cache_layout = "LBNHC"
    engine.cache_config.prefix_match_unit = unit
    block = next(iter(kv_cache_spec.values())).block_size
    engine.cache_config.block_size = block
    engine.cache_config.enable_prefix_caching = True
    engine.parallel_config.decode_context_parallel_size = dcp
    groups = utils.get_kv_cache_groups(engine, kv_cache_spec)
    config = specs.KVCacheConfig(num_blocks=1, kv_cache_tensors=[], kv_cache_groups=groups)
    scheduler_block, hash_block = utils.resolve_kv_cache_block_sizes(config, engine)
    alignment = utils.resolve_cache_hit_alignment_tokens(config, engine, scheduler_block, hash_block)
    described, tags = [], []
    for group in groups:
        spec = utils.resolve_dcp_kv_cache_spec(group.kv_cache_spec, dcp)
        if isinstance(spec, specs.UniformTypeKVCacheSpecs):
            spec = spec.first_spec
        if spec not in tags:
            tags.append(spec)
        described.append(
            {
                "kind": KINDS[type(spec)],
                "b": spec.block_size,
                "w": getattr(spec, "sliding_window", None) or getattr(spec, "attention_chunk_size", None) or 0,
                "eagle": group.is_eagle_group,
                "tag": tags.index(spec),
            }
        )
    return {
        "name": name,
        "groups": described,
        "L": scheduler_block,
        "h": hash_block,
        "use_eagle": eagle,
        "fine": alignment < scheduler_block,
        "R": retention,
        "dcp": dcp,
    }


for model, arguments in MODELS.items():
    lines.write(json.dumps(describe(model, *arguments)) + "\n")
lines.flush()
sys.exit(0)
