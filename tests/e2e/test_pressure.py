"""Right outputs while the store evicts and the engine preempts."""

import pytest

from harness.compare import assert_right


@pytest.fixture(scope="module")
def crowded(model):
    """A store for 24 MiB (48 blocks) beside an engine of 96 blocks."""
    from harness.cell import Cell

    with Cell(
        model, "crowded", store_bytes="24MiB", blocks=96, arguments=["--max-model-len", "8192"]
    ) as cell:
        yield cell.start()


def test_eviction(crowded, cut, reference, noise):
    head = cut.fresh(1500)
    prompts = [head + cut.text(n) for n in (200, 1500, 2500)] + [cut.fresh(n) for n in (2000, 3500, 4500)]
    right = reference(prompts)
    partial = 0
    for _ in range(3):
        for prompt, want in zip(prompts, right):
            got, tokens = crowded.loaded(prompt)
            partial += tokens > 0
            assert_right([want], [got], noise)
            crowded.forget()
    stored = sum(len(p) // 128 for p in prompts)
    assert stored > 48, "the prompts fit into the store: nothing was evicted"
    assert partial, "nothing ever came from the store"


def test_eviction_with_many_at_once(crowded, cut, reference, noise):
    head = cut.fresh(1000)
    prompts = [head + cut.text(300 + 150 * i) for i in range(8)] + [cut.fresh(600 + 200 * i) for i in range(8)]
    right = reference(prompts)
    for _ in range(2):
        assert_right(right, crowded.client.complete_many(prompts), noise)
        crowded.forget()


def test_preemption(crowded, cut, reference, noise):
    # Fourteen prompts of 700 tokens start in 84 blocks; with 200 tokens more each they need 112.
    prompts = [cut.fresh(700) for _ in range(14)]
    right = reference(prompts, 200, at_once=14)
    before = crowded.client.metrics().preemptions
    for _ in range(2):
        assert_right(right, crowded.client.complete_many(prompts, 200), noise)
        crowded.forget()
    assert crowded.client.metrics().preemptions > before, "nothing was preempted: the test shows nothing"
