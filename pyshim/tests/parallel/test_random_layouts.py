"""Any layout that vLLM takes: the story of recorded layouts, with the in-tree connector's rules for what is found.

``MOONCAKE_SIDECAR_LAYOUTS`` is the number of layouts, ``MOONCAKE_SIDECAR_LAYOUTS_SEED`` the first one's seed.
"""

import os
import random

import pytest

pytest.importorskip("vllm")

from .layouts import Layout
from .recording import BUDGET, record
from .story import Story

CASES = int(os.environ.get("MOONCAKE_SIDECAR_LAYOUTS", "8"))
SEED = int(os.environ.get("MOONCAKE_SIDECAR_LAYOUTS_SEED", "1"))
MOST_RANKS = 4


# Kind, PCP and DCP by the seed in turn, for most draws of them fit no four ranks; of eight in a row each value has its turn.
SHAPES = (
    ("full", 1, 1),
    ("full", 2, 1),
    ("mla", 1, 2),
    ("window", 1, 1),
    ("full", 1, 2),
    ("mla", 2, 1),
    ("window", 1, 2),
    ("mla", 1, 4),
    ("full", 1, 4),
    ("mla", 1, 1),
    ("window", 1, 4),
)


def draw(seed) -> Layout:
    """A layout within vLLM's own limits."""
    dice, (kind, pcp, dcp) = random.Random(seed), SHAPES[seed % len(SHAPES)]
    while True:
        layout = Layout(
            f"random-{seed}",
            tp=dice.choice((1, 2, 4)),
            pp=dice.choice((1, 1, 2, 4)),
            pcp=pcp,
            dcp=dcp,
            interleave=dice.choice((1, 2, 8)),
            heads=1 if kind == "mla" else dice.choice((1, 2, 4, 8)),
            kind=kind,
            memory=dice.choice(("LBHNC", "LBNHC")),
            store_tp=dice.choice((0, 0, 2, 4)),
        )
        if (
            2 <= layout.tp * layout.pp * layout.pcp <= MOST_RANKS
            and layout.tp % layout.dcp == 0
            and (layout.dcp == 1 or kind == "mla" or layout.tp // layout.dcp >= layout.heads)
        ):
            return layout


def test_few_seeds_draw_all_shapes():
    """With both context parallelisms in-tree lookups find nothing, and with windows there is no PCP in-tree."""
    assert not any(pcp > 1 and (dcp > 1 or kind == "window") for kind, pcp, dcp in SHAPES)
    for seed in range(100):
        drawn = [draw(k) for k in range(seed, seed + 8)]
        assert {layout.kind for layout in drawn} == {"full", "mla", "window"}
        assert {layout.pcp for layout in drawn} == {1, 2} and {layout.dcp for layout in drawn} == {1, 2, 4}


@pytest.mark.parametrize("seed", range(SEED, SEED + CASES))
def test_every_rank_has_its_bytes_again(seed, node, tmp_path):
    layout = draw(seed)
    print(layout)
    facts = record(layout, tmp_path)
    for part in ("store", "load"):
        engine, _ = node.start(layout, f"{seed}-{part}", BUDGET)
        getattr(Story(engine.block), part)(engine)
        assert engine.facts == facts[part]
        assert engine.used() == 0
        node.stop(engine)
    assert "branch" in engine.loaded
