#!/usr/bin/env python3
"""Writes store.json: a store job as the shim packs it, and its parts in words. `connector` must read the one as the other.

example:
  python testdata/golden/session/generate.py
"""

import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2] / "pyshim"))

from mooncake_sidecar.batch import NO_LIMIT, StoreBatch  # noqa: E402
from mooncake_sidecar.jobs import block_bytes  # noqa: E402

# (request, (save boundary, computed, prompt, prefill's end), most, label, first hash, hashes, tables, boundary puts)
PARTS = [
    ("a", (64, 70, 50, 50), NO_LIMIT, ("", 0, 0), 1, 3, [(2, [7, 8]), (1, [300])], []),
    ("long " * 50, (0, 40, 40, 40), 48, ("0123456789abcdef", 86400, 2), 0, 2, [(0, []), (0, [])], [(1, 9, 16), (0, 1 << 20, 32)]),
    ("\u20ac", (1 << 20, 1 << 20, 9, 1 << 20), 0, ("", 0, 0), 65534, 2, [(65535, [0, (1 << 31) - 1]), (0, [])], [(0, 3, 1 << 20)]),
]


def hashes(part: int, first: int, count: int) -> list[bytes]:
    return [bytes([part, (first + i) % 256] * 8) for i in range(count)]


def golden() -> dict:
    batch = StoreBatch(7, 2)
    parts = []
    for number, (request, tokens, most, label, first, count, tables, puts) in enumerate(PARTS):
        own = hashes(number, first, count)
        batch.add(request, tokens, most, label, first, own, [(f, block_bytes(blocks)) for f, blocks in tables], puts)
        parts.append({
            "request": request, "tokens": tokens, "most": None if most == NO_LIMIT else most, "salt_tag": label[0], "ttl_s": label[1],
            "pin": label[2], "first_hash": first, "hashes": b"".join(own).hex(), "first_blocks": [f for f, _ in tables],
            "blocks": [blocks for _, blocks in tables], "puts": puts,
        })  # fmt: skip
    frame = batch.command(1 << 60, (1 << 64) - 1).frame
    return {"job": 7, "epoch": 1 << 60, "generation": (1 << 64) - 1, "parts": parts, "frame": frame.hex()}


if __name__ == "__main__":
    (HERE / "store.json").write_text(json.dumps(golden(), indent=1) + "\n")
