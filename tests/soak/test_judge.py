"""A token that parts within noise does not end the judgement of what stands beside it."""

import dataclasses

import pytest
from harness import compare
from harness.client import Completion
from harness.compare import Noise
from soak import judge

NOISE = Noise(0.1, 100)  # allows 0.4


def output(*positions):
    """Of best tokens with their log-probabilities, by position."""
    tokens = tuple(max(ranked, key=ranked.get) for ranked in positions)
    return Completion(tokens, tuple((max(r.values()), tuple(sorted(r.items()))) for r in positions), "", 9, 0, "length")


FIRST = {"a": -0.5, "b": -2.0, "c": -3.0}
CLOSE = {"a": -1.0, "b": -1.3, "c": -2.0}
REFERENCE = output(FIRST, CLOSE, FIRST)


@pytest.mark.parametrize(
    ("second", "by"),
    [
        (CLOSE, 0.0),
        ({"a": -1.2, "b": -1.1, "c": -2.1}, 0.2),  # parts, for the margin is less than noise allows
        ({"a": -1.1, "b": -1.0, "d": -1.9}, 0.3),  # at the end of a list tokens change places too: d was no better than c
        ({"a": -1.6, "b": -1.0, "c": -2.0}, 0.6),  # parts, and noise moves nothing so far
        ({"a": -1.1, "b": -1.0, "c": -2.6}, 0.6),
        ({"b": -1.0, "d": -1.2, "e": -1.8}, 0.8),  # the reference's best is not even named
    ],
)
def test_where_outputs_part(second, by):
    got = output(FIRST, second, {"z": -0.1, "y": -9.0, "x": -9.1})
    if got.tokens[1] == "a":
        got = dataclasses.replace(got, tokens=REFERENCE.tokens, logprobs=(*got.logprobs[:2], REFERENCE.logprobs[2]))
    assert judge.moved(REFERENCE, got) == pytest.approx(by)
    assert compare.wrong(REFERENCE, got, NOISE) is None
    assert (judge.wrong(REFERENCE, got, NOISE) is not None) == (by > NOISE.margin)


def test_what_comes_behind_is_another_output():
    got = output(FIRST, {"a": -1.3, "b": -1.2, "c": -2.0}, {"z": -0.1, "y": -9.0, "x": -9.1})
    assert judge.wrong(REFERENCE, got, NOISE) is None


def test_what_the_common_rule_finds_is_found():
    assert "is b, not a" in judge.wrong(REFERENCE, output({"a": -2.0, "b": -0.5, "c": -3.0}, CLOSE, FIRST), NOISE)
    assert "tokens, not" in judge.wrong(REFERENCE, output(FIRST), NOISE)
