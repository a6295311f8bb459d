"""Whether an answer is right, by all that it says of each token; pure."""

from __future__ import annotations

from harness import compare
from harness.client import Completion
from harness.compare import Noise

Ranked = tuple[tuple[str, float], ...]


def wrong(reference: Completion, got: Completion, noise: Noise) -> str | None:
    """Says what is wrong with an output, None when nothing is.

    Stricter than `compare.wrong`: where noise lets two tokens change places, the others' log-probabilities must still agree.
    """
    if fault := compare.wrong(reference, got, noise):
        return fault
    if (by := moved(reference, got)) > noise.margin:
        return f"one of the best tokens' log-probabilities moved by {by:.2e} (noise allows {noise.margin:.2e})"
    return None


def moved(reference: Completion, got: Completion) -> float:
    """How far a log-probability moved at most, up to and with the token where outputs part: both followed the same ones."""
    largest = 0.0
    for want, have, (p, before), (q, after) in zip(reference.tokens, got.tokens, reference.logprobs, got.logprobs):
        largest = max(largest, _moved(before, after), _moved(after, before))
        if want != have:
            break
        largest = max(largest, abs(p - q))
    return largest


def _moved(some: Ranked, others: Ranked) -> float:
    """The same at one position, of the tokens of the first: one that the second does not name is no better than its last."""
    named, last = dict(others), min(p for _, p in others)
    return max(abs(p - named[token]) if token in named else p - last for token, p in some)
