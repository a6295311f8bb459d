"""Recurrent states: only those are saved that are what their hashes say; inside vLLM's real scheduler."""

import logging
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")

import torch
from conftest import make_geometry
from engine import BLOCK, Engine, write_model
from sent import stores
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor, MambaSpec

from mooncake_sidecar.states import StateRules

NUM_BLOCKS = 300


def hybrid_config(inside=0):
    """Full attention and one recurrent group, in pages of one size."""
    full = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=16, dtype=torch.float32)
    state = MambaSpec(
        block_size=BLOCK,
        shapes=((2, 16),),
        dtypes=(torch.float32,),
        page_size_padded=full.page_size_bytes,
        mamba_cache_mode="align",
        num_prefill_checkpoint_blocks=inside,
        prefill_checkpoint_alignment=1 if inside else None,
    )
    page = full.page_size_bytes
    tensor = KVCacheTensor(
        size=page * NUM_BLOCKS, layers=["a.0", "s.0"], layer_stride=0, block_stride=page
    )  # both overlay one run of pages
    return KVCacheConfig(
        num_blocks=NUM_BLOCKS,
        kv_cache_tensors=[tensor],
        kv_cache_groups=[KVCacheGroupSpec(["a.0"], full), KVCacheGroupSpec(["s.0"], state)],
        kv_cache_layout="LBHNC",
        hash_block_size=BLOCK,
        cache_hit_alignment_tokens=BLOCK,
    )


@pytest.fixture
def make(tmp_path, runtime_dir):
    made = []

    def engine(inside=0, **config):
        made.append(
            Engine(
                write_model(tmp_path),
                runtime_dir,
                num_blocks=NUM_BLOCKS,
                kv=hybrid_config(inside),
                mamba_cache_mode="align",
                **config,
            )
        )
        return made[-1]

    yield engine
    for one in made:
        one.connector.shutdown()


def saved(engine, steps=80):
    """The frames of all stores until the engine is idle."""
    frames = []
    for _ in range(steps):
        if not engine.scheduler.has_requests():
            break
        frames += stores(engine.step().stores)
    return frames


def states(frames):
    return sorted({tokens for f in frames for group, _, tokens in f.puts if group == 1})


def test_states_are_saved_where_chunks_end(make):
    engine = make(budget=64)
    engine.add("a", 150)
    frames = saved(engine)
    assert states(frames) == [64, 128, 144]
    assert max(f.token_len for f in frames) == 144
    assert all(f.tables[1] == [] for f in frames), "an align-mode table is no list of states"
    assert engine.used() == 0


def test_a_shared_prefix_leaves_a_state_at_its_junction(make):
    engine = make(budget=256)
    engine.add("a", 150)
    engine.drain()
    engine.add("b", 200, seed=0)  # begins like "a", which left a state at 144 that "b" goes on from
    engine.drain()
    engine.add("c", 100, seed=0)  # ends before it: attention hits 96, no state there
    assert states(saved(engine)) == [96]


def test_nothing_is_saved_where_chunks_end_beside_states(make, caplog):
    engine = make(budget=60)
    engine.scheduler.cache_config.block_size = 12  # what vLLM does to itself at the end of the engine's start
    engine.add("a", 150)
    with caplog.at_level(logging.ERROR, "vllm.mooncake_sidecar.states"):
        assert saved(engine) == []
        engine.add("b", 150, seed=3)
        assert saved(engine) == []
    assert caplog.text.count("--block-size 16") == 1
    assert engine.used() == 0


def test_a_state_that_the_step_does_not_leave_is_not_saved(make, monkeypatch):
    """Were chunks cut wrongly in some other way: the block that names the state of 144 keeps that of 140."""
    engine = make(budget=140)
    monkeypatch.setattr(type(engine.scheduler), "_mamba_block_aligned_split", lambda self, request, new, *rest: new)
    engine.add("a", 150)
    offered = []
    take = engine.scheduler.kv_cache_manager.take_boundary_state_offloads
    monkeypatch.setattr(
        engine.scheduler.kv_cache_manager, "take_boundary_state_offloads", lambda: offered.append(take()) or offered[-1]
    )
    frames = saved(engine)
    assert {tokens for step in offered for offers in step.values() for _, _, tokens in offers} == {144}
    assert states(frames) == [] and max(f.token_len for f in frames) == 144


def test_kernels_that_keep_states_inside_a_step(make):
    engine = make(inside=1, budget=256)
    engine.add("a", 150)
    frames = saved(engine)
    assert states(frames) == [144]
    assert engine.used() == 0


def test_what_a_step_leaves():
    geometry = make_geometry(BLOCK, kinds=["full_attention", "mamba_align"])
    rules = StateRules(geometry, SimpleNamespace(block_size=BLOCK), inside=False)
    assert rules.aligned()
    assert [t for t in range(0, 64, 8) if rules.right(t, 16, 48)] == [16, 48]
    rules = StateRules(geometry, SimpleNamespace(block_size=2 * BLOCK), inside=True)
    assert rules.aligned() and rules.right(32, 16, 48) and not rules.right(56, 16, 48)
    assert not StateRules(geometry, SimpleNamespace(block_size=8), inside=True).aligned()
