"""Prompts that share beginnings, and the outputs that they must give."""

from __future__ import annotations

import dataclasses
import random
from typing import Callable

from harness.client import Client, Completion
from harness.compare import Noise, measure
from harness.prompts import Prompts

from .setups import Setup

PROMPTS = 40
HEADS = 5
LONGEST_OUTPUT = 48
AT_ONCE = 8  # references that are computed together
# A request that neither loads nor saves: what the engine does without a connector.
ALONE = {"max_load_tokens": 0, "max_offload_tokens": 0}


@dataclasses.dataclass(frozen=True)
class Right:
    """A prompt and its longest output."""

    prompt: tuple[int, ...]
    output: Completion

    def first(self, tokens: int) -> Completion:
        """What a request for so many tokens must give: greedy decoding's shorter outputs begin longer ones."""
        return dataclasses.replace(self.output, tokens=self.output.tokens[:tokens], logprobs=self.output.logprobs[:tokens])


def prompts(setup: Setup, seed: int) -> list[tuple[int, ...]]:
    """Most begin as others do, to a random length; those with a beginning of their own are short."""
    cut, rng = Prompts(setup.model(), seed), random.Random(seed)
    heads = [cut.fresh(setup.shared) for _ in range(HEADS)]
    made = []
    for _ in range(PROMPTS):
        if rng.random() < 0.8:
            head = rng.choice(heads)[: rng.randrange(setup.block, setup.shared + 1)]
        else:
            head = cut.fresh(8)
        made.append(tuple(head + cut.text(rng.randrange(1, setup.longest - setup.shared))))
    return made


def references(client: Client, wanted: list[tuple[int, ...]], idle: Callable[[], None]) -> tuple[list[Right], Noise]:
    """Right outputs, computed without the store and without the engine's own cache, and how much they move between batches."""

    def run(some: list[tuple[int, ...]], at_once: int) -> list[Completion]:
        found = []
        for begin in range(0, len(some), at_once):
            idle()
            client.reset_prefix_cache()
            group = some[begin : begin + at_once]
            found += client.complete_many(group, LONGEST_OUTPUT, at_once, kv_transfer_params=ALONE)
        return found

    outputs = run(wanted, AT_ONCE)
    sample = wanted[:: len(wanted) // AT_ONCE][:AT_ONCE]
    again = run(sample, 1)
    idle()
    client.reset_prefix_cache()
    noise = measure([outputs[wanted.index(prompt)] for prompt in sample], again)
    return [Right(prompt, output) for prompt, output in zip(wanted, outputs)], noise
