"""What the ranks store and load, byte for byte, and that vLLM's scheduler decides as it was recorded to."""

from contextlib import nullcontext
from dataclasses import replace
from unittest.mock import patch

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.connector import MooncakeStoreConnector

from vllm.v1.attention.backends.utils import get_dcp_local_seq_lens

from mooncake_sidecar.namespace import Geometry

from .cache import slots
from .layouts import LAYOUTS, Layout, configure
from .recording import BUDGET, record, recorded
from .rule import Rule
from .story import Story


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_every_rank_has_its_bytes_again(layout, node):
    facts = recorded()[layout.name]
    for part in ("store", "load"):
        engine, ranks = node.start(layout, f"{layout.name}-{part}", BUDGET)
        getattr(Story(engine.block), part)(engine)
        assert engine.facts == facts[part]
        assert engine.used() == 0
        node.stop(engine)
    assert engine.loaded["branch"] == 5 * engine.block and "longer" in engine.loaded, "the story is another"


def test_vllm_decides_as_it_did(tmp_path):
    """Else ``scripts/record_steps.py`` records anew; what differs then is to be understood."""
    facts = recorded()
    assert list(facts) == [layout.name for layout in LAYOUTS]
    for layout in LAYOUTS:
        assert record(layout, tmp_path) == facts[layout.name], layout.name


def test_ranks_hold_as_many_tokens_as_vllm_says():
    for layout in LAYOUTS:
        specs = layout.specs(layout.ranks[0]).values()
        for spec in (spec for spec in specs if spec.dcp_sharded):
            lengths = torch.arange(6 * layout.block)
            for place in layout.ranks:
                want = get_dcp_local_seq_lens(lengths, layout.dcp, layout.dcp_rank(place), layout.interleave)
                held = [slots(layout, place, spec, 0, int(n)) for n in lengths]
                assert [len(positions) for positions, *_ in held] == want.tolist(), layout.name
                assert len(set(zip(*held[-1][1:], strict=True))) == len(held[-1][0]), "two tokens in one place"
                assert max(held[-1][2]) == spec.block_size - 1


@pytest.mark.parametrize(
    "layout",
    [Layout("pcp2-dcp2", pcp=2, dcp=2, kind="mla", heads=1), Layout("tp2-pcp2-dcp4", tp=2, pcp=2, dcp=4, kind="mla", heads=1)],
    ids=lambda layout: layout.name,
)  # fmt: skip
def test_both_context_parallelisms_at_once(layout, node):
    """The in-tree connector finds nothing then: its lookups ask for keys that none of its ranks writes."""
    for part in ("store", "load"):
        engine, ranks = node.start(layout, f"{layout.name}-{part}", BUDGET)
        getattr(Story(engine.block), part)(engine)
        node.stop(engine)
    assert engine.loaded == {"branch": 5 * engine.block, "short": engine.block, "longer": 2 * engine.block}
    rule, request = Rule(layout, engine.configured), engine.requests["branch"]
    rule.save(request, [request.num_prompt_tokens] * len(ranks))
    assert rule.find(request, request.num_prompt_tokens) == 0


def test_several_groups_with_prefill_context_parallelism_are_refused_as_in_tree(node):
    layout = Layout("pcp2-window", pcp=2, kind="window")
    with pytest.raises(ValueError, match="prefill context parallelism with several KV-cache groups"):
        node.start(layout, "refused")
    made = configure(layout, node.models, BUDGET, {"kv_connector": "MooncakeStoreConnector", "kv_role": "kv_both"})
    with pytest.raises(ValueError, match=r"PCP > 1 \(pcp=2\) with hybrid attention"):
        MooncakeStoreConnector(made.config, KVConnectorRole.SCHEDULER, made.scheduler)


def test_stages_with_different_numbers_of_layers_are_refused(node):
    with pytest.raises(ValueError, match="the pipeline stages have 1, 2, 1 layers"):
        node.start(Layout("pp3", pp=3), "refused")


def _shards_in_turn(shares, self, ranks):
    shards, strides, phases = shares(self, ranks)
    return [(shard + 1) % group.shards for shard, group in zip(shards, self.spec.groups, strict=True)], strides, phases


def _all_in_the_same_turn(shares, self, ranks):
    shards, strides, _ = shares(self, ranks)
    return shards, strides, [0] * len(strides)


def _all_the_first_of_their_stage(shares, self, ranks):
    return shares(self, replace(ranks, tp_rank=0))


@pytest.mark.parametrize("fault", [_shards_in_turn, _all_in_the_same_turn, _all_the_first_of_their_stage])
@pytest.mark.parametrize("part", ["store", "load"])
def test_a_rank_that_takes_another_ranks_place_is_noticed(part, fault, node):
    layout = replace(next(layout for layout in LAYOUTS if layout.name == "tp4-replicas"), name=f"{fault.__name__} {part}")
    facts, shares = recorded()["tp4-replicas"], Geometry.shares

    def run(what):
        engine, _ = node.start(layout, f"{layout.name} {what}", BUDGET)
        try:
            getattr(Story(engine.block), what)(engine)
            assert engine.facts == facts[what], "the engine found something else than recorded"
        finally:
            node.stop(engine)

    def mistaken(self, ranks):
        return fault(shares, self, ranks)

    with patch.object(Geometry, "shares", mistaken) if part == "store" else nullcontext():
        run("store")
    # What nobody has stored is not found. Of replicas each loads all, whoever's turn it was to store.
    absent = part == "store" and fault is not _shards_in_turn
    told = "found something else than recorded" if absent else r"rank \d has other bytes than it should"
    with nullcontext() if part == "load" and fault is _all_in_the_same_turn else pytest.raises(AssertionError, match=told):
        with patch.object(Geometry, "shares", mistaken) if part == "load" else nullcontext():
            run("load")
