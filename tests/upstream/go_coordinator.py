"""The in-tree coordinator's classes, answered by ours (``mooncake-bench coordinator``).

A pytest plugin: it stands in for the in-tree module, so that upstream's tests
of it run unchanged against the Go code.
"""

import json
import subprocess
import sys
from pathlib import Path

from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store import coordinator as in_tree
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.data import chunk_hashes_for_block_size
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheGroupSpec, MambaSpec, SlidingWindowSpec

BENCH = Path(__file__).resolve().parents[2] / "bin" / "mooncake-bench"
KINDS = {FullAttentionSpec: "full", SlidingWindowSpec: "swa", MambaSpec: "mamba"}


def ask(case: dict) -> dict:
    """One question to the Go coordinator."""
    run = subprocess.run(
        [str(BENCH), "coordinator", "--cases", "-"], input=json.dumps(case), capture_output=True, text=True, check=True
    )
    answer = json.loads(run.stdout)
    assert "error" not in answer, answer
    return answer


class ExternalCachedBlockPool:
    """The set of chunks that exist; what it holds is judged by a lookup of one block."""

    def __init__(self, hash_block_size, exists=None):
        self.exists = exists
        self.hash_block_size = hash_block_size
        self.null_block = KVCacheBlock(block_id=0)
        self._present = KVCacheBlock(block_id=1)

    def get_cached_block(self, block_hash, group_ids):
        spec = FullAttentionSpec(block_size=self.hash_block_size, num_kv_heads=1, head_size=1, dtype=None)
        groups = [KVCacheGroupSpec(["layer"], spec) for _ in range(max(group_ids) + 1)]
        chosen = MooncakeStoreCoordinator([groups[0] for _ in group_ids], self.hash_block_size, self.hash_block_size)
        renamed = None
        if self.exists is not None:
            renamed = {(place, h) for place, group in enumerate(group_ids) for g, h in self.exists if g == group}
        pool = ExternalCachedBlockPool(self.hash_block_size, renamed)
        _, hit = chosen.find_longest_cache_hit([block_hash], self.hash_block_size, pool)
        return [self._present] * len(group_ids) if hit else None

    def contains(self, group_id, block_hash):
        return self.exists is not None and self.get_cached_block(block_hash, [group_id]) is not None


class MooncakeStoreCoordinator:
    """Turns the in-tree calls into cases."""

    def __init__(
        self,
        kv_cache_groups,
        scheduler_block_size,
        hash_block_size,
        use_eagle=False,
        retention_interval=None,
        enable_partial_hash_hits=False,
    ):
        self.kv_cache_groups = kv_cache_groups
        self.lcm_block_size = scheduler_block_size
        self.hash_block_size = hash_block_size
        specs = []
        for group in kv_cache_groups:
            if group.kv_cache_spec not in specs:
                specs.append(group.kv_cache_spec)
        self._case = {
            "groups": [
                {
                    "kind": KINDS[type(group.kv_cache_spec)],
                    "b": group.kv_cache_spec.block_size,
                    "w": getattr(group.kv_cache_spec, "sliding_window", 0) or 0,
                    "eagle": group.is_eagle_group,
                    "tag": specs.index(group.kv_cache_spec),
                }
                for group in kv_cache_groups
            ],
            "L": scheduler_block_size,
            "h": hash_block_size,
            "use_eagle": use_eagle,
            "fine": enable_partial_hash_hits,
            "R": retention_interval,
        }
        # Which groups share their rules, and a drafter's mark with them, is seen from outside only
        # in the answers. Tests look at the two sets; they are derived as vLLM documents it.
        self.attention_groups = specs
        marked = {specs.index(g.kv_cache_spec) for g in kv_cache_groups if g.is_eagle_group}
        everything = use_eagle and not marked
        self.eagle_group_ids = {
            i for i, g in enumerate(kv_cache_groups) if everything or specs.index(g.kv_cache_spec) in marked
        }

    def find_longest_cache_hit(self, block_hashes, max_length, cached_block_pool, *, apply_eagle=True):
        exists = None
        if cached_block_pool.exists is not None:
            number = {bytes(h): i for i, h in enumerate(block_hashes)}
            exists = [[g, number[h]] for g, h in sorted(cached_block_pool.exists) if h in number]
        answer = ask(
            self._case
            | {"op": "find", "N": len(block_hashes), "exists": exists, "M": max_length, "apply_eagle": apply_eagle}
        )
        return tuple([bool(bit) for bit in mask] for mask in answer["masks"]), answer["hit"]

    def load_mask(self, block_hashes, token_len):
        everything = ExternalCachedBlockPool(self.hash_block_size)
        return self.find_longest_cache_hit(block_hashes, token_len, everything, apply_eagle=False)[0]

    def store_mask(self, aligned_token_len, start_token=0, num_prompt_tokens=None):
        return self._masks("store_mask", aligned_token_len, start_token, num_prompt_tokens)

    def lookup_mask(self, aligned_token_len):
        return self._masks("lookup_mask", aligned_token_len, 0, None)

    def _masks(self, op, tokens, start, prompt):
        answer = ask(self._case | {"op": op, "T": tokens, "start": start, "nprompt": prompt})
        return tuple(answer["masks"])

    def block_hashes_for_spec(self, block_hashes, spec):
        return chunk_hashes_for_block_size(block_hashes, self.hash_block_size, spec.block_size)


_stand_in = type(sys)(in_tree.__name__)
_stand_in.ExternalCachedBlockPool = ExternalCachedBlockPool
_stand_in.MooncakeStoreCoordinator = MooncakeStoreCoordinator
sys.modules[in_tree.__name__] = _stand_in
