"""The model kinds that a soak may run, each with so few blocks that requests are preempted."""

from __future__ import annotations

import dataclasses
import pathlib
from types import ModuleType

from harness import checkpoint, latent, recurrent, sliding
from harness.engine import REPOSITORY


@dataclasses.dataclass(frozen=True)
class Setup:
    """An engine for one model kind."""

    name: str
    family: ModuleType
    directory: str  # of the checkpoint, in build/
    block: int  # tokens
    blocks: int  # of the engine's pool
    longest: int  # tokens of a prompt
    shared: int  # tokens of the longest beginning that prompts share
    arguments: tuple[str, ...]
    # How far vLLM's own batches may move a log-probability; above it nothing is learned from outputs.
    most_noise: float = 1e-2
    # Of the store. Some prompts fill it between two resets, on a slow machine too: chunks are evicted, and with a disk tier go
    # there and come back.
    store_bytes: int = 24 << 20
    # Of the checkpoint, where the family's own shape will not do.
    shape: object | None = None

    def model(self) -> pathlib.Path:
        return self.family.generate(REPOSITORY / "build" / self.directory, *filter(None, [self.shape]))


_CHUNKS = ("--max-model-len", "4096", "--max-num-batched-tokens", "512", "--enable-chunked-prefill")
_STATES = ("--dtype", "bfloat16", "--enable-prefix-caching", "--mamba-cache-mode", "align", "--block-size", str(recurrent.BLOCK))
_STATES += ("--max-model-len", "4096", "--max-num-seqs", "12")
_SMOOTH = recurrent.Shape(experts_per_token=recurrent.Shape.experts)

SETUPS = {
    setup.name: setup
    for setup in (
        Setup("dense", checkpoint, "checkpoint", 128, 44, 1400, 900, _CHUNKS),
        Setup("sliding", sliding, "checkpoint-sliding", 128, 84, 1400, 900, _CHUNKS),
        # vLLM turns chunked prefill off for this one, whatever it is told.
        Setup("latent", latent, "checkpoint-latent", latent.BLOCK, 270, 1000, 700, ("--max-model-len", "4096")),
        # In bfloat16, for which alone vLLM's CPU kernels are: batches move its sums, and a resumed request's the more, for a
        # prompt's states are summed by another kernel than decoding's. A wrong state moves them by far more than either. All
        # experts take every token: where sums choose between experts, one bit of noise now and then gives another token, which
        # nothing tells from a wrong answer.
        Setup("recurrent", recurrent, "checkpoint-recurrent-smooth", recurrent.BLOCK, 64, 1900, 1200, _STATES, 0.5, 8 << 20, _SMOOTH),
    )
}
