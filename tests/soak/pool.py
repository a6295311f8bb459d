"""Prompts that share beginnings, the outputs that they must give, and how far vLLM's own ways to compute them differ."""

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
# So many tokens of an output are computed again as a prompt's, in the sample that noise is measured by.
RESUMED_AT = (1, 12, 30)
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
    """Right outputs, computed without the store and without the engine's own cache, and how much they move.

    They move between batches, and where a request resumes after a preemption: then what decoding had computed is computed as
    a prompt is, by other kernels. In bfloat16 the second moves them further than the first.
    """

    def run(some: list[tuple[int, ...]], at_once: int, tokens: int = LONGEST_OUTPUT) -> list[Completion]:
        found = []
        for begin in range(0, len(some), at_once):
            idle()
            client.reset_prefix_cache()
            group = some[begin : begin + at_once]
            found += client.complete_many(group, tokens, at_once, kv_transfer_params=ALONE)
        return found

    outputs = run(wanted, AT_ONCE)
    sample = wanted[:: len(wanted) // AT_ONCE][:AT_ONCE]
    right = [outputs[wanted.index(prompt)] for prompt in sample]
    noises = [measure(right, run(sample, 1))]
    for at in RESUMED_AT:
        resumed = run([prompt + begun(output, at) for prompt, output in zip(sample, right)], AT_ONCE, LONGEST_OUTPUT - at)
        noises.append(measure([rest(output, at) for output in right], resumed))
    idle()
    client.reset_prefix_cache()
    noise = Noise(max(n.largest for n in noises), sum(n.positions for n in noises))
    return [Right(prompt, output) for prompt, output in zip(wanted, outputs)], noise


def begun(output: Completion, tokens: int) -> tuple[int, ...]:
    """The ids of an output's first tokens."""
    return tuple(int(token.removeprefix("token_id:")) for token in output.tokens[:tokens])


def rest(output: Completion, tokens: int) -> Completion:
    """An output without its first tokens."""
    return dataclasses.replace(output, tokens=output.tokens[tokens:], logprobs=output.logprobs[tokens:])
