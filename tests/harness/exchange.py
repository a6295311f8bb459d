"""Engines that hand prompts to each other through a cluster: what each brought, and whether its outputs are right."""

from __future__ import annotations

import dataclasses
from typing import Sequence

from .client import Completion, Prompt
from .compare import Noise, wrong
from .engine import Engine

# Of a prompt computed alone, whole or behind a cached prefix; damaged KV moves log-probabilities by thousands of times as much.
NOISE = Noise(1e-4, 0)


@dataclasses.dataclass(frozen=True)
class Answer:
    """What one request gave, by the engine's own metrics."""

    output: Completion
    loaded_tokens: int  # that the connector brought
    computed_tokens: int  # that the engine computed before the first one that it generated
    loaded_bytes: int
    ttft_ms: float


def ask(engine: Engine, prompt: Prompt) -> Answer:
    """One request alone, whose stores have ended when this returns."""
    before = engine.client.metrics()
    output = engine.client.complete(prompt)
    engine.wait_idle()
    after = engine.client.metrics()

    def grown(name: str, *labels: str) -> float:
        return after.value(name, *labels) - before.value(name, *labels)

    return Answer(
        output,
        loaded_tokens=after.external_hit_tokens - before.external_hit_tokens,
        computed_tokens=int(grown("vllm:request_prefill_kv_computed_tokens_sum")),
        loaded_bytes=int(grown("vllm:mooncake_store_operation_bytes_total", 'operation="load_get"')),
        ttft_ms=grown("vllm:time_to_first_token_seconds_sum") * 1e3,
    )


@dataclasses.dataclass
class Handover:
    """Prompts that one engine computed and another loaded."""

    cold: list[Answer]
    loaded: list[Answer]
    again: list[Answer]  # the loading engine's own cache gave them
    cluster_read_bytes: int

    @property
    def tokens(self) -> int:
        return sum(a.loaded_tokens for a in self.loaded)

    def missing(self, block: int) -> list[str]:
        """A line for each way in which a prompt was not loaded whole."""
        found = []
        for k, (cold, loaded) in enumerate(zip(self.cold, self.loaded, strict=True), 1):
            prompt = cold.output.prompt_tokens
            want = whole(prompt, block)
            if loaded.loaded_tokens != want:
                found.append(f"prompt {k}: {loaded.loaded_tokens} tokens came from the cluster, not {want}")
            elif loaded.computed_tokens != prompt - want:
                found.append(f"prompt {k}: {loaded.computed_tokens} tokens were computed, not {prompt - want}")
        if self.cluster_read_bytes < sum(a.loaded_bytes for a in self.loaded):
            found.append(f"the cluster gave {self.cluster_read_bytes} bytes, the engine says it loaded more")
        return found

    def wrong(self) -> list[str]:
        """A line for each output that is not the right one."""
        found = []
        for k, (cold, loaded, again) in enumerate(zip(self.cold, self.loaded, self.again, strict=True), 1):
            if fault := wrong(cold.output, loaded.output, NOISE):
                found.append(f"prompt {k}: {fault}")
            # From the same blocks and the same length the same sums come out, to the last bit.
            if again.output.cached_tokens == loaded.output.cached_tokens and again.output.output != loaded.output.output:
                found.append(f"prompt {k}: what was loaded gives another output than the engine's own cache")
        return found


def hand_over(cold: Sequence[Answer], prompts: Sequence[Prompt], engine: Engine, cluster) -> Handover:
    """The engine, which has never seen the prompts, answers each twice: from the cluster, then from its own cache."""
    before = cluster.read_bytes
    loaded = [ask(engine, prompt) for prompt in prompts]
    read_bytes = cluster.read_bytes - before
    return Handover(list(cold), loaded, [ask(engine, prompt) for prompt in prompts], read_bytes)


def whole(prompt_tokens: int, block: int) -> int:
    """Tokens of a stored prompt that a store can bring: whole blocks before the last token."""
    return (prompt_tokens - 1) // block * block
