"""When are two outputs of one prompt the same?

One request at a time and from the same cached length, bit for bit. Otherwise vLLM sums in another order, the numbers differ
by a little noise, and only where the best token leads the second best by more than that noise must the tokens agree.
"""

from __future__ import annotations

import dataclasses
from typing import Sequence

from .client import Completion

# A margin is the difference of two log-probabilities, each of which moves by at most the noise: twice the noise, and as much
# again for what the measured sample did not show.
SAFETY = 4.0


@dataclasses.dataclass(frozen=True)
class Noise:
    """The largest movement of a log-probability between two ways to compute the same thing, and over how many it was seen."""

    largest: float
    positions: int

    @property
    def margin(self) -> float:
        """Above this margin a token must agree."""
        return max(self.largest * SAFETY, 1e-6)

    def __str__(self) -> str:
        return f"largest difference of a log-probability {self.largest:.2e} over {self.positions} positions"


def measure(reference: Sequence[Completion], other: Sequence[Completion]) -> Noise:
    """Noise between two runs, up to where their tokens part."""
    largest, positions = 0.0, 0
    for a, b in zip(reference, other, strict=True):
        for (pa, ta), (pb, tb), wa, wb in zip(a.logprobs, b.logprobs, a.tokens, b.tokens):
            if wa != wb:
                break
            positions += 1
            seen = dict(tb)
            for token, p in ta:
                if token in seen:
                    largest = max(largest, abs(p - seen[token]))
            largest = max(largest, abs(pa - pb))
    return Noise(largest, positions)


def wrong(reference: Completion, got: Completion, noise: Noise) -> str | None:
    """Says what is wrong with an output, None when nothing is: up to where the reference itself was undecided."""
    if len(got.tokens) != len(reference.tokens):
        return f"{len(got.tokens)} tokens, not {len(reference.tokens)} ({got.finish_reason})"
    for i, (want, have) in enumerate(zip(reference.tokens, got.tokens)):
        if want != have:
            if reference.margin(i) > noise.margin:
                return f"token {i} is {have}, not {want}, which leads by {reference.margin(i):.2e} (noise allows {noise.margin:.2e})"
            return None
        moved = abs(reference.logprobs[i][0] - got.logprobs[i][0])
        if moved > noise.margin:
            return f"the log-probability of token {i} moved by {moved:.2e} (noise allows {noise.margin:.2e})"
    return None


def assert_right(reference: Sequence[Completion], got: Sequence[Completion], noise: Noise) -> None:
    """Fails with a line for each wrong output."""
    faults = [f"prompt {i}: {fault}" for i, (r, g) in enumerate(zip(reference, got, strict=True)) if (fault := wrong(r, g, noise))]
    assert not faults, "\n".join(faults)
