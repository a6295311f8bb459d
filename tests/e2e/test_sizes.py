"""An engine of one rank and one of two at the same time, on the same daemons: each loads what the other has stored."""

import pytest

from harness.cell import Cell, wait_in_use, whole
from harness.compare import Noise, assert_right
from harness.daemons import LOOKUPD
from harness.engine import Engine, ours
from harness.prompts import Prompts
from harness.segment import Segment
from harness.several import ENVIRONMENT, RANKS, TP

# Two ranks sum in another order than one; what that moves is far below what wrong bytes move.
SUMMED_OTHERWISE = Noise(1e-4, 32)


@pytest.fixture(scope="module")
def engines(model):
    """(cell of the engine with one rank, the other engine)."""
    with Cell(model, "sizes", extra={"store_tp_size": RANKS}) as cell:
        connector = ours(**cell.extra)
        with Engine(
            model, cell.directory, connector=connector, environment=ENVIRONMENT, arguments=TP, name="two-ranks"
        ) as two:
            cell.start()
            wait_in_use(two.wait_ready())
            yield cell, two


def stored(engine, prompts):
    """Outputs of prompts that nobody knows yet; only the store remembers them then."""
    outputs = [engine.client.complete(prompt) for prompt in prompts]
    engine.forget()
    return outputs


def assert_loaded(engine, prompts, want):
    for prompt, output in zip(prompts, want, strict=True):
        before = engine.client.metrics().external_hit_tokens
        got = engine.client.complete(prompt)
        assert engine.client.metrics().external_hit_tokens - before == whole(prompt), f"{len(prompt)} tokens"
        assert_right([output], [got], SUMMED_OTHERWISE)
    engine.forget()


def test_each_loads_what_the_other_has_stored(engines, model):
    cell, two = engines
    cut = Prompts(model, seed=29)
    for first, second in ((cell.engine, two), (two, cell.engine)):
        prompts = [cut.fresh(n) for n in (129, 700, 1500)]
        assert_loaded(second, prompts, stored(first, prompts))
    with Segment(cell.daemons.wait(LOOKUPD)) as segment:
        assert {len(chunk.shards) for chunk in segment.chunks()} == {RANKS}
