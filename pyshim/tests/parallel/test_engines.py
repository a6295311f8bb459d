"""Several engines on one node: what they may share they share, and nothing else."""

from dataclasses import replace

import pytest

pytest.importorskip("vllm")

from .layouts import Layout
from .story import Story

PLAIN = Layout("plain")


def run(engine, name, prompt):
    """Runs a prompt. Returns the tokens that the store brought; that the bytes are right is seen by the ranks."""
    engine.add(name, prompt)
    engine.run()
    return engine.loaded.get(name, 0)


@pytest.mark.parametrize("layout", [Layout("two", tp=2), Layout("windows", kind="window"), Layout("stages", pp=2)],
                         ids=lambda layout: layout.name)  # fmt: skip
@pytest.mark.parametrize("front_ends", [1, 2], ids=["data-parallel", "separate"])
def test_each_loads_what_the_other_has_stored(layout, front_ends, node):
    extra = {"cache_prefix": f"{layout.name}-{front_ends}"}
    if front_ends == 1:
        places = [{"data_parallel": 2, "index": 0}, {"data_parallel": 2, "index": 1}]
    else:
        places = [{}, {}]
    first, second = (
        node.start(layout, f"{layout.name}-{front_ends}-{number}", **place, **extra)[0]
        for number, place in enumerate(places)
    )
    story = Story(first.block)
    assert run(first, "long", story.long) == 0
    assert run(second, "long", story.long) == 5 * second.block
    assert run(second, "short", story.short) == 0
    assert run(first, "short", story.short) == first.block
    node.stop(first)
    node.stop(second)


SHARING = [
    (Layout("latent", kind="mla", heads=1), {"tp": 2}),
    (Layout("latent stages", kind="mla", heads=1, pp=2), {"tp": 2}),
    (Layout("replicas", tp=2, heads=2), {"tp": 4}),
    (Layout("cut", store_tp=4), {"tp": 2}),
    (Layout("cut, token-major", store_tp=4, memory="LBNHC"), {"tp": 4}),
    (Layout("cut windows", store_tp=2, kind="window"), {"tp": 2}),
    (Layout("cut stages", store_tp=4, pp=2), {"tp": 2}),
]


@pytest.mark.parametrize(("layout", "change"), SHARING, ids=lambda value: getattr(value, "name", ""))
def test_engines_of_different_sizes_load_what_the_other_has_stored(layout, change, node):
    """Byte for byte, both ways: each rank has what its place in its own engine wants."""
    extra = {"cache_prefix": layout.name}
    first, _ = node.start(layout, f"{layout.name}-1", **extra)
    second, _ = node.start(replace(layout, **change), f"{layout.name}-2", **extra)
    story = Story(first.block)
    assert run(first, "long", story.long) == 0
    assert run(second, "long", story.long) == 5 * second.block
    assert run(second, "short", story.short) == 0
    assert run(first, "short", story.short) == first.block
    node.stop(first)
    node.stop(second)


STRANGERS = [
    (PLAIN, {"tp": 2}),
    (PLAIN, {"pp": 2}),
    (PLAIN, {"pcp": 2}),
    (PLAIN, {"kind": "window"}),
    (PLAIN, {"memory": "LBNHC"}),
    (PLAIN, {"store_tp": 2}),
    (Layout("shared", store_tp=4), {"store_tp": 2}),
    (Layout("replicas of one head", tp=2, heads=1), {"dcp": 2}),
    (Layout("tokens in turns", tp=2, heads=1, dcp=2), {"interleave": 4}),
    (Layout("latent tokens in turns", tp=2, kind="mla", heads=1, dcp=2, interleave=2), {"interleave": 16}),
]


@pytest.mark.parametrize(
    ("layout", "change"), STRANGERS, ids=[f"{layout.name}, {change}" for layout, change in STRANGERS]
)
def test_engines_with_other_bytes_find_nothing_of_each_other(layout, change, node):
    extra = {"cache_prefix": "strangers " + layout.name + repr(change)}
    first, _ = node.start(layout, f"first of {layout.name}", **extra)
    second, _ = node.start(replace(layout, **change), f"second of {layout.name}", **extra)
    story = Story(first.block)
    assert run(first, "long", story.long) == 0
    assert run(second, "long", story.long) == 0
    first.forget()
    assert run(first, "long again", story.long) == 5 * first.block
    node.stop(first)
    node.stop(second)
