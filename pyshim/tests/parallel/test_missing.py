"""A chunk is a hit only when every rank's shard is there: what one rank has not stored shortens the hit, as in-tree."""

import pytest

pytest.importorskip("vllm")

from .layouts import LAYOUTS
from .rule import Rule

CHUNKS = 5


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_what_one_rank_lacks_is_no_hit(layout, node):
    engine, ranks = node.start(layout, f"{layout.name}-missing", budget=layout.block)
    block, found, rule = engine.block, set(), Rule(layout, engine.configured)
    for number, rank in enumerate(ranks):
        for stored in range(number % 2, CHUNKS + 1, 2):
            name = f"{number}-{stored}"
            prompt = [(number * 8 + stored) % 700 + 1] + [7 + i % 601 for i in range(CHUNKS * block + 5)]
            rank.idle_from = rank.stores + stored  # each step computes one chunk, and saves it
            engine.add(name, prompt)
            engine.run()
            rank.idle_from = None
            request = engine.requests[name]
            rule.save(request, [stored * block if r is rank else CHUNKS * block for r in ranks])
            engine.forget()
            again = f"{name} again"
            engine.add(again, prompt)
            want = rule.find(engine.requests[again], len(prompt))
            engine.run()
            assert engine.loaded.get(again, 0) == want, f"rank {number} has stored {stored} chunks of {CHUNKS}"
            found.add(want // block)
            engine.forget()
    # A window is stored where its prompt ends, so that half of such a prompt is no hit.
    want = {0, CHUNKS} if layout.kind == "window" else set(range(CHUNKS + 1))
    assert found == want
    node.stop(engine)
