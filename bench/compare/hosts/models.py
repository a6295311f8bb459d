"""The checkpoints of the comparison, by bytes of KV cache a token. Only their size matters: small models, so that the store's part shows."""

from __future__ import annotations

import pathlib

from harness import checkpoint

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent.parent

SHAPES = {
    "kv2k": checkpoint.Shape(layers=4, heads=4, kv_heads=1, head_size=64),
    # One request of the longest kind must fit into 1 GiB, of which the null block takes a part.
    "kv64k": checkpoint.Shape(layers=16, heads=8, kv_heads=8, head_size=64, max_positions=12288),
}


def prepare(name: str) -> pathlib.Path:
    """The checkpoint's directory; generates it unless it is there."""
    return checkpoint.generate(ROOT / "build" / f"checkpoint-{name}", SHAPES[name])
