"""Answers coordinator cases with the installed vLLM.

Reads one JSON case a line from standard input and writes one JSON answer a line,
in the format of the package coordcases, until the input ends. A case may say more
than that package reads:

  groups[].layers    wrap the group's spec in a uniform-type spec of so many layers
  dcp, tp, pcp, pp   parallel sizes; block sizes of the case are sharded already
  kv_heads           total KV heads
  store_tp           shards of a TP-shared store layout that was asked for, -1 for a
                     number that makes no sense
  layout, cross      the KV-cache layout, and whether blocks span layers
  rank               the tensor-parallel rank whose own keys are wanted
  model, prefix      names that go into pool keys
  partial            [group, hash index, n]: all keys of the chunk are there but one

The operation "time" times a find instead. The answer to a lookup has the key
prefixes of every group besides, the keys under which the rank stores the hash 0,
and that hash's Mooncake group id. Where vLLM asserts, the answer has "raised" with the exception's name and "hit" with the
length it had found by then, if any.
"""

import json
import os
import sys
import time
from types import SimpleNamespace

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
answers = os.fdopen(os.dup(1), "w", buffering=1 << 16)
os.dup2(2, 1)  # whatever vLLM prints goes to standard error

import torch  # noqa: E402

from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store import (  # noqa: E402
    data,
    worker,
)
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.coordinator import (  # noqa: E402
    ExternalCachedBlockPool,
    MooncakeStoreCoordinator,
)
from vllm.v1 import kv_cache_interface as specs  # noqa: E402
from vllm.v1.kv_cache_layout import KVCacheLayout  # noqa: E402

HASH_BYTES = 4
spec_cache: dict[tuple, specs.KVCacheSpec] = {}
everything: dict[tuple, set] = {}  # the chunks of the store that "time" asks, by hashes and groups


def make_spec(group: dict, dcp: int) -> specs.KVCacheSpec:
    """The spec as the engine has it, before context-parallel sharding."""
    key = (group["kind"], group["b"], group["w"], group["tag"], group.get("layers", 0), dcp)
    if key in spec_cache:
        return spec_cache[key]
    kind, block, window, tag = group["kind"], group["b"], group["w"], group["tag"]
    attention = dict(num_kv_heads=tag + 1, head_size=8, dtype=torch.float16)
    sharded = dict(attention, block_size=block // dcp)
    whole = dict(attention, block_size=block, dcp_sharded=False)
    if kind == "full":
        spec = specs.FullAttentionSpec(**sharded)
    elif kind == "mla":
        spec = specs.MLAAttentionSpec(**sharded)
    elif kind == "hidden":
        spec = specs.HiddenStateCacheSpec(**sharded)
    elif kind == "rswa":
        spec = specs.RSWASpec(rswa_window=64, **sharded)
    elif kind == "sink":
        spec = specs.SinkFullAttentionSpec(sink_len=4, **sharded)
    elif kind == "swa":
        spec = specs.SlidingWindowSpec(sliding_window=window, **whole)
    elif kind == "swa_mla":
        spec = specs.SlidingWindowMLASpec(sliding_window=window, **whole)
    elif kind == "chunked":
        spec = specs.ChunkedLocalAttentionSpec(attention_chunk_size=window, **whole)
    elif kind == "mamba":
        spec = specs.MambaSpec(
            block_size=block, shapes=((tag + 1,),), dtypes=(torch.float16,), mamba_cache_mode="align"
        )
    else:
        raise ValueError(f"kind {kind}")
    if layers := group.get("layers", 0):
        spec = specs.UniformTypeKVCacheSpecs(
            block_size=spec.block_size, kv_cache_specs={f"layer{i}": spec for i in range(layers)}
        )
    spec_cache[key] = spec
    return spec


def make_coordinator(case: dict) -> MooncakeStoreCoordinator:
    groups = [
        specs.KVCacheGroupSpec([f"g{i}"], make_spec(g, case.get("dcp", 1)), is_eagle_group=g["eagle"])
        for i, g in enumerate(case["groups"])
    ]
    config = specs.KVCacheConfig(num_blocks=1, kv_cache_tensors=[], kv_cache_groups=groups)
    config.cache_hit_alignment_tokens = case["h"] if case["fine"] else case["L"]
    config.prefix_cache_retention_interval = case.get("R")
    engine = SimpleNamespace(
        parallel_config=SimpleNamespace(decode_context_parallel_size=case.get("dcp", 1)),
        speculative_config=SimpleNamespace(use_eagle_block_drop=lambda: True) if case["use_eagle"] else None,
    )
    return MooncakeStoreCoordinator.from_kv_cache_config(config, engine, case["L"], case["h"])


def make_hashes(n: int) -> data.BlobBlockHashes:
    blob = b"".join(i.to_bytes(HASH_BYTES, "big") for i in range(n))
    return data.BlobBlockHashes(memoryview(blob), HASH_BYTES)


class StubStore:
    def __init__(self) -> None:
        self.keys: set[str] = set()
        self.everything = False

    def batch_is_exist(self, keys: list[str]) -> list[int]:
        return [1 if self.everything or key in self.keys else 0 for key in keys]


def make_worker(case: dict, coordinator: MooncakeStoreCoordinator) -> worker.MooncakeStoreWorker:
    w = worker.MooncakeStoreWorker.__new__(worker.MooncakeStoreWorker)
    w._capacity_only = False
    w.coord = coordinator
    w.hash_block_size = case["h"]
    w._kv_cache_groups = coordinator.kv_cache_groups
    w.tp_rank = case.get("rank", 0)
    w.tp_size, w.pp_size = case.get("tp", 1), case.get("pp", 1)
    w.pcp_size, w.dcp_size = case.get("pcp", 1), case.get("dcp", 1)
    w.num_kv_head = case.get("kv_heads", 1)
    layout = KVCacheLayout[case.get("layout") or "LBHNC"]
    w.cache_config = SimpleNamespace(get_resolved_kv_cache_layout=lambda: layout)
    extra = {"enable_cross_layers_blocks": case.get("cross", False)}
    if case.get("store_tp"):
        extra["store_tp_size"] = case["store_tp"]
    w.store_tp_size, namespace, layout_cls = w._select_store_layout(extra)
    metadata = data.KeyMetadata(
        model_name=case.get("model", "m").rstrip("/").split("/")[-1],
        tp_rank=w.tp_rank,
        pcp_rank=0,
        dcp_rank=w.tp_rank % w.dcp_size,
        pp_rank=0,
        cache_prefix=case.get("prefix", ""),
        store_namespace=namespace,
    )
    w._group_tp_replication_factors = w._compute_group_tp_replication_factors()
    w.token_dbs = w._build_token_databases(metadata, layout_cls)
    w._init_lookup_key_prefixes()
    w.store = StubStore()
    w._record_kv_connector_operation = lambda *args, **kwargs: None
    return w


def lookup(case: dict, coordinator: MooncakeStoreCoordinator) -> dict:
    w = make_worker(case, coordinator)
    hashes = make_hashes(case["N"])
    prefixes = w._lookup_key_prefixes

    def keys(group: int, index: int) -> list[str]:
        return [data.PoolKey.build_key_string(p, hashes[index].hex()) for p in prefixes[group]]

    if case["exists"] is None:
        w.store.everything = True
    else:
        for group, index in case["exists"]:
            w.store.keys.update(keys(group, index))
    for group, index, n in case.get("partial") or []:
        some = keys(group, index)
        del some[n % len(some)]
        w.store.keys.update(some)
    zero = (0).to_bytes(HASH_BYTES, "big")
    answer = {
        "prefixes": prefixes,
        "factors": w._group_tp_replication_factors,
        "own": [[db.store_layout.key_for(s, zero) for s in db.store_layout.local_shard_ids] for db in w.token_dbs],
        "lifecycle": worker._make_mooncake_group_id(w.token_dbs[0].metadata, zero.hex()),
    }
    found = []
    find = coordinator.find_longest_cache_hit

    def recorded(*args, **kwargs):
        result = find(*args, **kwargs)
        found.append(result[1])
        return result

    coordinator.find_longest_cache_hit = recorded
    try:
        result = w.lookup(case["tokens"], hashes)
    except (AssertionError, IndexError) as error:
        answer["raised"] = type(error).__name__
        if found:
            answer["hit"] = found[-1]
        return answer
    answer["hit"] = result.hit_length
    answer["tails"] = [[t.group_id, t.num_tokens] for t in result.tail_key_boundaries]
    return answer


def time_find(case: dict, coordinator: MooncakeStoreCoordinator) -> dict:
    """Nanoseconds of one find over a store that has all chunks, after one that is not timed."""
    hashes = make_hashes(case["N"])
    key = (case["N"], len(case["groups"]))
    if key not in everything:
        everything.clear()
        everything[key] = {(g, bytes(h)) for g in range(key[1]) for h in hashes}
    pool = ExternalCachedBlockPool(case["h"], everything[key])
    coordinator.find_longest_cache_hit(hashes, case["M"], pool)
    start = time.perf_counter_ns()
    coordinator.find_longest_cache_hit(hashes, case["M"], pool)
    return {"ns": time.perf_counter_ns() - start}


def answer(case: dict) -> dict:
    coordinator = make_coordinator(case)
    op = case["op"]
    if op == "time":
        return time_find(case, coordinator)
    try:
        if op == "find":
            exists = case["exists"]
            hashes = make_hashes(case["N"])
            pool = ExternalCachedBlockPool(
                case["h"], None if exists is None else {(g, bytes(hashes[i])) for g, i in exists}
            )
            masks, hit = coordinator.find_longest_cache_hit(
                hashes, case["M"], pool, apply_eagle=case["apply_eagle"]
            )
            return {"hit": hit, "masks": [[int(bit) for bit in mask] for mask in masks]}
        if op == "store_mask":
            return {"masks": coordinator.store_mask(case["T"], case["start"], case["nprompt"])}
        if op == "lookup_mask":
            return {"masks": coordinator.lookup_mask(case["T"])}
    except (AssertionError, IndexError) as error:
        return {"raised": type(error).__name__}
    if op == "lookup":
        return lookup(case, coordinator)
    raise ValueError(f"op {op}")


def main() -> None:
    for line in sys.stdin:
        answers.write(json.dumps(answer(json.loads(line)), separators=(",", ":")) + "\n")
        if case_wants_flush(line):
            answers.flush()
    answers.flush()


def case_wants_flush(line: str) -> bool:
    """A line that ends with a blank before its newline waits for its answer."""
    return line.endswith(" \n")


if __name__ == "__main__":
    main()
