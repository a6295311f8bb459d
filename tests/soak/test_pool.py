"""Noise is what the engine's own ways to compute one output differ by, that of a resumed request included."""

import pytest
from harness.client import Completion
from soak import pool

PROMPTS = [(k, k + 1, k + 2) for k in range(pool.AT_ONCE)]


class Engine:
    """Decodes to tokens that say where they are; a prompt's log-probabilities are off by what it is told."""

    def __init__(self, alone=0.0, resumed=0.0):
        self._alone, self._resumed = alone, resumed

    def complete_many(self, prompts, tokens, at_once, kv_transfer_params):
        assert kv_transfer_params == pool.ALONE
        return [self._complete(prompt, tokens, self._alone if at_once == 1 else 0.0) for prompt in prompts]

    def _complete(self, prompt, tokens, off):
        begun = len(prompt) - 3
        off += self._resumed if begun else 0.0
        names = tuple(f"token_id:{prompt[0] * 100 + k}" for k in range(begun, begun + tokens))
        assert prompt[3:] == tuple(prompt[0] * 100 + k for k in range(begun))
        logprobs = tuple((-0.5 + off, ((name, -0.5 + off), ("token_id:4000", -3.0))) for name in names)
        return Completion(names, logprobs, "", len(prompt), 0, "length")

    def reset_prefix_cache(self):
        pass


@pytest.mark.parametrize(("moved", "found"), [({}, 0.0), ({"alone": 0.25}, 0.25), ({"resumed": 0.125}, 0.125)])
def test_what_is_measured_as_noise(moved, found):
    idle = []
    right, noise = pool.references(Engine(**moved), PROMPTS, lambda: idle.append(1))
    assert [r.prompt for r in right] == PROMPTS
    assert all(len(r.output.tokens) == pool.LONGEST_OUTPUT for r in right)
    assert noise.largest == pytest.approx(found)
    positions = pool.LONGEST_OUTPUT + sum(pool.LONGEST_OUTPUT - at for at in pool.RESUMED_AT)
    assert noise.positions == pool.AT_ONCE * positions
