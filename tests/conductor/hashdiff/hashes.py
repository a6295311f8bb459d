"""Prints random requests and vLLM's hashes of their blocks, as events name them: a JSON object a line.

    python hashes.py COUNT SEED
"""

import json
import os
import random
import sys

from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core import kv_cache_utils
from vllm.v1.request import Request
from vllm.sampling_params import SamplingParams

ALGORITHMS = ("sha256", "sha256_cbor", "xxhash", "xxhash_cbor")
# Numbers just below and above a change of their length, in pickle and in CBOR.
EDGES = (0, 1, 23, 24, 127, 128, 255, 256, 32767, 32768, 65535, 65536, 99_999, 2**31 - 1)
SALTS = ("", "", "s", "tenant-7", "x" * 300, "grün", "鍵", "\U0001f511" * 3, "\n\t\x00'\"\\")
BLOCKS = (1, 2, 3, 4, 7, 16, 16, 16, 32, 128, 256, 1024)


def request(rng: random.Random, function) -> dict:
    block = rng.choice(BLOCKS)
    salt = rng.choice(SALTS)
    count = rng.randrange(0, 6 * block) if block < 256 else rng.randrange(0, 3 * block)
    tokens = [rng.choice(EDGES) if rng.random() < 0.3 else rng.randrange(160_000) for _ in range(count)]
    made = Request(
        request_id="r", prompt_token_ids=tokens, sampling_params=SamplingParams(max_tokens=1), pooling_params=None,
        cache_salt=salt or None, block_hasher=kv_cache_utils.get_request_block_hasher(block, function),
    )
    return {
        "block": block,
        "salt": salt,
        "tokens": tokens,
        "hashes": [kv_cache_utils.maybe_convert_block_hash(digest) for digest in made.block_hashes],
    }


def main(count: int, seed: int) -> None:
    rng = random.Random(seed)
    profiles = [(algorithm, fixed) for algorithm in ALGORITHMS for fixed in (None, "0", "42", "4294967295") if fixed or algorithm.startswith("sha256")]
    for n, (algorithm, fixed) in enumerate(profiles):
        os.environ.pop("PYTHONHASHSEED", None)
        if fixed is not None:
            os.environ["PYTHONHASHSEED"] = fixed
        function = get_hash_fn_by_name(algorithm)
        kv_cache_utils.init_none_hash(function)
        for _ in range(count * n // len(profiles), count * (n + 1) // len(profiles)):
            sys.stdout.write(json.dumps({"algorithm": algorithm, "seed": fixed or ""} | request(rng, function)) + "\n")


main(int(sys.argv[1]), int(sys.argv[2]))
