"""Shards named by the in-tree store connector's keys (``compat_keys``), so that engines of both kinds can share objects.

A key is ``[prefix@]model[store layout]@tp_rank:..@pcp..@dcp..@pp_rank:..@group:..@hash``
(``KeyMetadata`` and ``PoolKey`` of vLLM's ``mooncake/store/data.py``). All that is
not in it must be kept equal by the operator; ``left_out`` says what that is.
``tests/test_compat.py`` holds both against the installed vLLM's own worker.
"""

from typing import Any

from mooncake_sidecar import naming, weights
from mooncake_sidecar.messages import NamespaceSpec

_SHARED_LAYOUTS = {"LBHNC", "LBNHC"}


def base_name(model: str) -> str:
    """The model as keys name it."""
    return model.rstrip("/").split("/")[-1]


def store_layout(
    kv_cache_config: Any, sizes: Any, kv_heads: int, store_tp: int
) -> tuple[str, bool]:
    """(how keys name the store layout, whether shards are shared by engines of several tensor-parallel sizes), in-tree.

    Args:
        sizes: the parallel sizes (``namespace.Ranks``).
        store_tp: shards that were asked for, 0 for none.
    """
    if not store_tp:
        return "", False
    name = kv_cache_config.kv_cache_layout
    groups = [kv_cache_config.kv_cache_groups[i] for i in kv_cache_config.prefix_cacheable_group_ids]
    shareable = (
        store_tp % sizes.tp == 0
        and name in _SHARED_LAYOUTS
        and sizes.pcp == sizes.dcp == 1
        and [type(group.kv_cache_spec).__name__ for group in groups] == ["FullAttentionSpec"]
    )
    if shareable and kv_heads % store_tp == 0:
        return f"@store_tp:{store_tp}@store_pp:{sizes.pp}@store_format:tp_shared_{name.lower()}", True
    if shareable and kv_heads == 1:
        return f"@store_pp:{sizes.pp}@store_format:tp_shared_mqa", False
    return f"@store_pp:{sizes.pp}@store_format:rank_local_tp{sizes.tp}_layout_{name}", False


def key_space(
    model: str, cache_prefix: str, kv_cache_config: Any, sizes: Any, kv_heads: int, *, store_tp: int, cut: int
) -> str:
    """What all keys of the engine begin with.

    Args:
        cut: shards that a rank's block is cut into, 0 for none.

    Raises:
        ValueError: in-tree keys can't name what this engine stores; the message says what to do.
    """
    if sizes.pcp > 1 and sizes.dcp > 1:
        raise ValueError(
            f"compat_keys is on with prefill context parallelism of {sizes.pcp} and decode context parallelism of "
            f"{sizes.dcp}: in-tree engines look up other keys than they write there, so that nothing can be shared. "
            "Leave compat_keys out, or use one of the two"
        )
    for what, text in (("cache_prefix", cache_prefix), ("the last part of the model's path", base_name(model))):
        if "@" in text:
            raise ValueError(
                f"compat_keys is on and {what} is {text!r}: keys put an @ between the two, so that one in either lets engines "
                "of two models use the same keys. Give it another name, or leave compat_keys out"
            )
    layout, shared = store_layout(kv_cache_config, sizes, kv_heads, store_tp)
    if shared != (cut > 0):
        who = "the in-tree connector has no keys for such shards of" if cut else "shards of the in-tree format can't be cut from"
        raise ValueError(
            f"compat_keys is on and store_tp_size is {store_tp}, but {who} this model's KV cache (in-tree: one "
            f"full-attention group, not padded, layout {' or '.join(sorted(_SHARED_LAYOUTS))}; here: "
            f"{_kinds_of(kv_cache_config)}, {kv_cache_config.kv_cache_layout}). Leave store_tp_size and "
            "enable_store_tp_lcm out on every engine of the fleet, and use one tensor-parallel size; or leave compat_keys out"
        )
    prefix = f"{cache_prefix}@" if cache_prefix else ""
    return f"{prefix}{base_name(model)}{layout}"


def left_out(spec: NamespaceSpec, vllm_config: Any) -> dict[str, str]:
    """What the engine's keys leave out, by factor, with this engine's value of each."""
    model, cache = vllm_config.model_config, vllm_config.cache_config
    attention = getattr(vllm_config, "attention_config", None)
    backend = getattr(getattr(attention, "backend", None), "name", None) or "chosen by vLLM"
    groups = [
        f"{g.kind}{f' of {g.window_tokens}' if g.window_tokens else ''} in blocks of {g.block_tokens}" for g in spec.groups
    ]
    found = {
        "model": f"which {spec.model} it is (path {model.model}, revision {model.revision or 'none'}, the weights)",
        **_settings(vllm_config),
        "kv_dtype": f"the KV cache's data type {spec.dtype}, and its scales",
        "cache_dtype": f"kv_cache_dtype {cache.cache_dtype}",
        "groups": f"the KV-cache groups and their block sizes ({'; '.join(groups)})",
        "speculation": f"speculative decoding {_method(vllm_config)} (its layers are in the groups)",
        "backend": f"the attention backend {backend}, which orders bytes inside a block",
    }
    # What a store layout names, or makes the same for all.
    shared = "@store_format:tp_shared_" in spec.key_space
    if "_layout_" not in spec.key_space and "tp_shared_lb" not in spec.key_space:
        found["layout"] = f"the KV-cache layout {spec.layout}"
    if "@store_format:" not in spec.key_space:
        found["tp"] = f"tensor parallelism {vllm_config.parallel_config.tensor_parallel_size}"
        found["pp"] = f"pipeline parallelism {spec.pp}"
    if not shared:
        found["pcp"] = f"prefill context parallelism {spec.pcp}"
        found["dcp"] = f"decode context parallelism {spec.dcp}, and its cp_kv_cache_interleave_size"
    if getattr(vllm_config, "lora_config", None) is not None:
        found["lora"] = "what is in a LoRA adapter (hashes have its name and path)"
    return found


def warning(spec: NamespaceSpec, vllm_config: Any) -> str:
    """What an operator of a mixed fleet must know, concretely for this engine."""
    listed = "; ".join(left_out(spec, vllm_config).values())
    return (
        f"compat_keys is on: shards are named {spec.key_space}@tp_rank:…, as the in-tree connector names them. These keys "
        f"leave out: {listed}. On one node an engine is refused whose KV cache has another geometry (data type, layout, groups, "
        "parallel sizes) than that of a live one with these keys; nothing else is checked, and nothing between nodes: keep all "
        "of it equal by hand on every engine that uses these keys, or give engines that differ another cache_prefix. To find each other's objects at all they also "
        f"need equal hashes: prefix_caching_hash_algo {spec.hash_algorithm}, {spec.hash_block_tokens} tokens a hash, "
        "PYTHONHASHSEED (unset or the same)"
    )


def _kinds_of(kv_cache_config: Any) -> str:
    groups = (kv_cache_config.kv_cache_groups[i] for i in kv_cache_config.prefix_cacheable_group_ids)
    return ", ".join(type(group.kv_cache_spec).__name__ for group in groups)


def _settings(vllm_config: Any) -> dict[str, str]:
    """What a namespace without these keys would have of the model's settings."""
    try:
        known = weights.every_setting(vllm_config)
    except naming.UnnameableError as error:
        return {"settings": f"the settings of the model ({error} can't be looked at)"}
    return {name: f"{name} {_shown(value)}" for name, value in known.items()}


def _shown(value: Any) -> str:
    """A setting's value for a reader."""
    if isinstance(value, dict):
        value = ", ".join(f"{name} {_shown(each)}" for name, each in value.items() if each)
    elif isinstance(value, (list, tuple)):
        value = ", ".join(_shown(each) for each in value)
    return str(value) if value else "none"


def _method(vllm_config: Any) -> str:
    return getattr(vllm_config.speculative_config, "method", None) or "none"
