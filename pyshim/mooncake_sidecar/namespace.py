"""What makes KV bytes interchangeable between engines, and a rank's share of a chunk.

The scheduler and every worker build the same ``NamespaceSpec`` from the same
configuration, so that lookups and jobs speak of the same chunks.
"""

import hashlib
import logging
from dataclasses import dataclass
from typing import Any

from mooncake_sidecar import checkpoint, compat, layout, sharing, weights
from mooncake_sidecar.messages import GroupSpec, NamespaceSpec

logger = logging.getLogger("vllm.mooncake_sidecar.namespace")

# Exact class name of vLLM's specs -> our kind. Subclasses may have rules of
# their own, so nothing is derived from inheritance.
_KINDS = {
    "FullAttentionSpec": "full_attention",
    "MLAAttentionSpec": "mla_attention",
    "HiddenStateCacheSpec": "hidden_state",
    "RSWASpec": "rswa",
    "SinkFullAttentionSpec": "sink_full_attention",
    "SlidingWindowSpec": "sliding_window",
    "SlidingWindowMLASpec": "sliding_window_mla",
    "ChunkedLocalAttentionSpec": "chunked_local_attention",
    "MambaSpec": "mamba_align",
}
_HASH_BYTES = {"sha256": 32, "sha256_cbor": 32, "xxhash": 16, "xxhash_cbor": 16}
_REPLICATED = {"mla_attention", "hidden_state", "sliding_window_mla"}


def unwrap(spec: Any) -> Any:
    """The spec that decides: of a uniform group the first layer's."""
    inner = getattr(spec, "kv_cache_specs", None)
    return next(iter(inner.values())) if inner else spec


def kind_of(spec: Any) -> str:
    """Our name of a spec's kind.

    Raises:
        ValueError: a kind without known hit rules; the message names it.
    """
    name = type(spec).__name__
    if name not in _KINDS:
        raise ValueError(
            f"the model has a KV-cache group of kind {name}, which mooncake_sidecar can't store "
            f"(it knows {', '.join(sorted(_KINDS))})"
        )
    if name == "MambaSpec" and spec.mamba_cache_mode != "align":
        raise ValueError(
            f"mamba_cache_mode is {spec.mamba_cache_mode!r}; only 'align' has states that can be hit. "
            "Start vLLM with --mamba-cache-mode align"
        )
    return _KINDS[name]


@dataclass(frozen=True)
class Ranks:
    """Parallel sizes and this rank's place in them (the scheduler has no place: 0)."""

    tp: int
    pp: int
    pcp: int
    dcp: int
    tp_rank: int = 0
    pp_rank: int = 0
    pcp_rank: int = 0


def parallel_sizes(vllm_config: Any) -> Ranks:
    """The sizes from the configuration; the rank's place is left at 0."""
    parallel = vllm_config.parallel_config
    return Ranks(
        tp=parallel.tensor_parallel_size,
        pp=parallel.pipeline_parallel_size,
        pcp=getattr(parallel, "prefill_context_parallel_size", 1),
        dcp=getattr(parallel, "decode_context_parallel_size", 1),
    )


def replication(spec: Any, kind: str, ranks: Ranks, kv_heads: int) -> int:
    """How many consecutive TP ranks hold byte-identical shards of a group.

    The in-tree connector's factor: none with DCP or recurrent state, all ranks
    for latent attention, else the ranks that share a KV head.
    """
    if ranks.dcp > 1:
        return 1
    inner = getattr(spec, "kv_cache_specs", None)
    kinds = {kind_of(s) for s in inner.values()} if inner else {kind}
    if "mamba_align" in kinds:
        return 1
    if kinds <= _REPLICATED:
        return ranks.tp
    return max(1, ranks.tp // kv_heads)


@dataclass(frozen=True)
class Geometry:
    """Everything both roles derive from the engine's configuration."""

    spec: NamespaceSpec
    store_group_ids: tuple[int, ...]
    """Store group -> the engine's group id."""
    replication: tuple[int, ...]
    """By store group: consecutive TP ranks with identical shards."""
    cut: int = 0
    """Shards that a rank's block is cut into for engines with other numbers of ranks; 0: it is one shard."""

    @property
    def held_shards(self) -> int:
        """Shards of a block that a rank holds."""
        return max(self.cut, 1)

    @property
    def block_tokens(self) -> list[int]:
        """By store group: tokens of one block."""
        return [group.block_tokens for group in self.spec.groups]

    @property
    def mamba_groups(self) -> frozenset[int]:
        """Store groups with recurrent state."""
        return frozenset(i for i, g in enumerate(self.spec.groups) if g.kind == "mamba_align")

    @property
    def fine(self) -> bool:
        """Whether hits may end inside a scheduler block."""
        return 0 < self.spec.hit_alignment_tokens < self.spec.scheduler_block_tokens

    def shares(self, ranks: Ranks) -> tuple[list[int], list[int], list[int]]:
        """(number of the first shard, put stride, put phase) of a rank by store group.

        Ranks with identical shards take turns by chunk index, as in-tree ranks do.
        """
        shards, strides, phases = [], [], []
        for group, factor in enumerate(self.replication):
            columns = ranks.tp // factor
            place = (ranks.pp_rank * ranks.pcp + ranks.pcp_rank) * columns + ranks.tp_rank // factor
            shards.append(place * self.held_shards)
            strides.append(factor)
            phases.append((ranks.tp_rank + group) % factor)
        return shards, strides, phases


def build(
    vllm_config: Any,
    kv_cache_config: Any,
    cache_prefix: str,
    block_sizes: tuple[int, int],
    store_tp: int = 0,
    *,
    compat_keys: bool = False,
) -> Geometry:
    """Describe the engine.

    Args:
        store_tp: shards that engines of several tensor-parallel sizes share, 0 for none.
        compat_keys: name shards by the in-tree connector's keys.
        block_sizes: (scheduler block, hash block) in tokens, as vLLM's
            ``resolve_kv_cache_block_sizes`` gives them.

    Raises:
        ValueError: the model or its configuration can't be served; the message says why.
    """
    ranks = parallel_sizes(vllm_config)
    if (nodes := getattr(vllm_config.parallel_config, "nnodes_within_dp", 1)) > 1:
        raise ValueError(
            f"the engine's ranks are on {nodes} nodes: a chunk is found where one node has all of its shards, and none would "
            'have, with store "mooncake" as little as without. Run an engine on each node, with store "mooncake" to share'
        )
    group_ids = tuple(kv_cache_config.prefix_cacheable_group_ids)
    if not group_ids:
        raise ValueError("the model has no KV-cache group that can be hit by prefix: nothing can be stored")
    if len(group_ids) > 1 and ranks.pcp > 1:
        raise ValueError("prefill context parallelism with several KV-cache groups is not supported")
    cache, model = vllm_config.cache_config, vllm_config.model_config
    _check_stages(model, ranks.pp)
    algorithm = cache.prefix_caching_hash_algo
    if algorithm not in _HASH_BYTES:
        raise ValueError(f"prefix_caching_hash_algo {algorithm!r} is not known (known: {', '.join(_HASH_BYTES)})")
    kv_heads = model.get_total_num_kv_heads()
    page = layout.shard_bytes(kv_cache_config)
    cut = _cut(kv_cache_config, ranks, kv_heads, store_tp)
    groups, factors, dtypes = [], [], []
    for group_id in group_ids:
        group = kv_cache_config.kv_cache_groups[group_id]
        spec = unwrap(group.kv_cache_spec)
        kind = kind_of(spec)
        factor = replication(group.kv_cache_spec, kind, ranks, kv_heads)
        factors.append(factor)
        dtypes.append(_dtype(spec))
        identity = sharing.whole_spec(spec, kv_heads) if cut else spec
        groups.append(
            GroupSpec(
                kind=kind,
                block_tokens=spec.block_size * (ranks.dcp if spec.dcp_sharded else 1),
                window_tokens=_window(spec, kind),
                eagle=bool(group.is_eagle_group),
                identity=hashlib.sha256(repr(identity).encode()).hexdigest()[:32],
                shard_bytes=page // max(cut, 1),
                shards=ranks.tp // factor * max(cut, 1) * ranks.pcp * ranks.pp,
            )
        )
    speculative = vllm_config.speculative_config
    retention = getattr(kv_cache_config, "prefix_cache_retention_interval", None)
    dtype = dtypes[0] if cache.cache_dtype == "auto" else f"{dtypes[0]}/{cache.cache_dtype}"
    space = ""
    if compat_keys:
        space = compat.key_space(
            model.model, cache_prefix, kv_cache_config, ranks, kv_heads, store_tp=store_tp, cut=cut
        )
    spec = NamespaceSpec(
        model=compat.base_name(model.model) if space else model.model,
        revision="" if space else checkpoint.asked_for(model.revision),
        fingerprint="" if space else weights.fingerprint(vllm_config),
        cache_prefix=cache_prefix,
        dtype=dtype,
        layout=_layout_name(kv_cache_config, vllm_config, shared=cut > 0),
        hash_algorithm=algorithm,
        hash_bytes=_HASH_BYTES[algorithm],
        hash_block_tokens=block_sizes[1],
        scheduler_block_tokens=block_sizes[0],
        hit_alignment_tokens=kv_cache_config.cache_hit_alignment_tokens or 0,
        use_eagle=speculative is not None and speculative.use_eagle_block_drop(),
        retention_tokens=-1 if retention is None else retention,
        # Ranks that hold the same bytes count once: engines that differ only in how
        # often a head is repeated have the same shards.
        tp=max(ranks.tp // factor for factor in factors) * max(cut, 1),
        pp=ranks.pp,
        pcp=ranks.pcp,
        dcp=ranks.dcp,
        groups=groups,
        key_space=space,
    )
    return Geometry(spec, group_ids, tuple(factors), cut)


def _check_stages(model: Any, stages: int) -> None:
    """Shards of a chunk have one length, and a rank can't know that of another stage's.

    Raises:
        ValueError: the pipeline stages have different numbers of layers.
    """
    layers = getattr(model, "get_total_num_hidden_layers", None)
    if stages == 1 or layers is None:
        return
    from vllm.distributed.utils import get_pp_indices

    spans = [get_pp_indices(layers(), stage, stages) for stage in range(stages)]
    counts = [end - start for start, end in spans]
    if len(set(counts)) > 1:
        raise ValueError(
            f"the pipeline stages have {', '.join(map(str, counts))} layers; the store needs as many in each. "
            "Choose another pipeline_parallel_size, or set VLLM_PP_LAYER_PARTITION where the model allows it"
        )


def _cut(kv_cache_config: Any, ranks: Ranks, kv_heads: int, store_tp: int) -> int:
    """Shards that a rank's block is cut into when ``store_tp`` are shared; 0 when none are."""
    if not store_tp:
        return 0
    groups = kv_cache_config.kv_cache_groups
    specs = [unwrap(groups[group_id].kv_cache_spec) for group_id in kv_cache_config.prefix_cacheable_group_ids]
    if kv_heads == 1 or {kind_of(spec) for spec in specs} <= _REPLICATED:
        return 0  # a block is the same on every rank, however many there are
    reason = sharing.why_not(
        specs, kv_cache_config.kv_cache_layout, ranks.tp, ranks.pcp * ranks.dcp > 1, kv_heads, store_tp
    )
    runs = layout.runs_from_config(kv_cache_config)
    pages = {run.bytes for run in runs}
    if not reason and pages != {spec.unpadded_page_size_bytes for spec in specs}:
        reason = "blocks of its layers have several lengths, or are padded"
    pieces = len(specs) * len(runs) * sharing.piece_count(
        kv_cache_config.kv_cache_layout, max(spec.block_size for spec in specs), store_tp // ranks.tp
    )
    if not reason and pieces > sharing.MAX_SEGMENTS:
        reason = (
            f"a rank's blocks would be in {pieces} pieces, at most {sharing.MAX_SEGMENTS} can be registered; "
            "smaller blocks (--block-size), or VLLM_KV_CACHE_LAYOUT=LBHNC, make fewer"
        )
    if reason:
        logger.warning(
            "shards are not shared with engines of another tensor-parallel size, as store_tp_size %d asks for: %s",
            store_tp,
            reason,
        )
        return 0
    return store_tp // ranks.tp


def _layout_name(kv_cache_config: Any, vllm_config: Any, shared: bool) -> str:
    """What names the order of bytes in a shard.

    The kernel's own blocks inside a block are the attention backend's, which only
    the workers find out. One that was asked for is named, so that engines with
    another do not read its blocks as theirs. So is how ranks with decode context
    parallelism take tokens in turns.
    """
    name = kv_cache_config.kv_cache_layout
    parts = [f"{name}/tp_shared_{name.lower()}" if shared else f"{name or 'default'}/rank_local"]
    attention = getattr(vllm_config, "attention_config", None)
    if (backend := getattr(attention, "backend", None)) is not None:
        parts.append(backend.name)
    by_kind = getattr(attention, "backend_per_kind", None) or {}
    parts += (f"{kind}={of_kind.name}" for kind, of_kind in sorted(by_kind.items()))
    if (turn := _interleave(vllm_config.parallel_config)) > 1:
        parts.append(f"interleave={turn}")
    return "/".join(parts)


def _interleave(parallel: Any) -> int:
    """Tokens in a row that a decode-context rank holds. Of vLLM's two settings the older one rules where it is used."""
    if getattr(parallel, "decode_context_parallel_size", 1) == 1:
        return 1
    older = getattr(parallel, "dcp_kv_cache_interleave_size", 1)
    return older if older > 1 else getattr(parallel, "cp_kv_cache_interleave_size", 1)


def _window(spec: Any, kind: str) -> int:
    if kind in ("sliding_window", "sliding_window_mla"):
        return spec.sliding_window
    return spec.attention_chunk_size if kind == "chunked_local_attention" else 0


def _dtype(spec: Any) -> str:
    dtypes = getattr(spec, "dtypes", None) or (spec.dtype,)
    return "+".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
