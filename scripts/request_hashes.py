#!/usr/bin/env python3
"""Prints the block hashes of a prompt for ``mooncake-lookupd explain --hashes``.

Reads token ids, as a JSON list or separated by white space, and prints
``{"tokens": ..., "hashes": [...]}``. Needs the engine's vLLM, its
``--prefix-caching-hash-algo`` and, where that is an xxhash, its PYTHONHASHSEED.
Prompts with images, a LoRA adapter or a cache salt have other hashes.

Example:
    python scripts/request_hashes.py --block-tokens 16 prompt_ids.json |
        mooncake-lookupd explain --namespace 0 --hashes -
"""

import argparse
import json
import sys

from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core import kv_cache_utils


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokens", type=argparse.FileType(), nargs="?", default=sys.stdin, help="file of token ids")
    parser.add_argument("--block-tokens", type=int, default=16, help="tokens a hash (explain lists it; default 16)")
    parser.add_argument("--algorithm", default="sha256", help="prefix_caching_hash_algo (default sha256)")
    arguments = parser.parse_args()
    if arguments.block_tokens < 1:
        parser.error("--block-tokens must be at least 1")
    tokens = [int(word) for word in arguments.tokens.read().replace(",", " ").strip(" []\n").split()]
    function = get_hash_fn_by_name(arguments.algorithm)
    kv_cache_utils.init_none_hash(function)
    hashes: list[bytes] = []
    for end in range(arguments.block_tokens, len(tokens) + 1, arguments.block_tokens):
        block = tokens[end - arguments.block_tokens : end]
        hashes.append(kv_cache_utils.hash_block_tokens(function, hashes[-1] if hashes else None, block))
    print(json.dumps({"tokens": len(tokens), "hashes": [value.hex() for value in hashes]}))


if __name__ == "__main__":
    main()
