#!/usr/bin/env python3
"""Writes keys.json: engines at random, their namespaces with compat_keys, and the keys that vLLM's in-tree store
connector gives each shard of a chunk. `internal/kv` must give the same.

example:
  python testdata/golden/keys/generate.py
"""

import base64
import json
import pathlib
import sys

import msgspec

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[2] / "pyshim"), str(HERE.parents[2] / "pyshim" / "tests")]

from in_tree_keys import Case, keys_of  # noqa: E402

CASES = 150


def golden(seeds) -> list[dict]:
    """The cases of these seeds, but for those whose keys are refused."""
    found = []
    for seed in seeds:
        digest = bytes((seed * 7 + i) % 256 for i in range(32 if seed % 2 else 16))
        try:
            geometry, keys = keys_of(Case.random(seed), digest)
        except ValueError as error:
            assert "compat_keys" in str(error), error
            continue
        hashes = base64.b64encode(digest).decode()
        found.append({"Namespace": msgspec.to_builtins(geometry.spec), "Hash": hashes, "Keys": keys})
    return found


if __name__ == "__main__":
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in golden(range(CASES)))
    (HERE / "keys.json").write_text(f"[\n{lines}\n]\n")
