"""What the cluster demo calls a failure, on made-up answers."""

import dataclasses

import cluster_demo
import pytest
from harness.client import Completion
from harness.exchange import Answer, Handover

BLOCK = 128
PROMPT = 900
WHOLE = 896


def answer(cached: int, *, logprob: float = -0.5, token: str = "token_id:7", computed: int | None = None, loaded: int | None = None) -> Answer:
    """Of a prompt of which so much was cached; the token leads the next one by 2.5."""
    output = Completion(
        tokens=(token,),
        logprobs=((logprob, ((token, logprob), ("token_id:9", logprob - 2.5))),),
        text="",
        prompt_tokens=PROMPT,
        cached_tokens=cached,
        finish_reason="length",
    )
    computed = PROMPT - cached if computed is None else computed
    loaded = cached if loaded is None else loaded
    return Answer(output, loaded_tokens=loaded, computed_tokens=computed, loaded_bytes=loaded * 4096, ttft_ms=10.0)


def handover(**changes) -> Handover:
    fields = {
        "cold": [answer(0, loaded=0)],
        "loaded": [answer(WHOLE)],
        "again": [answer(WHOLE, loaded=0)],
        "cluster_read_bytes": WHOLE * 4096,
    }
    return Handover(**(fields | changes))


def report(first: Handover) -> dict:
    result = cluster_demo.Result(BLOCK, {"a_to_b": first, "ours_to_intree": handover(), "intree_to_ours": handover()}, stored_keys=7)
    return cluster_demo.summary({"llama": result, "latent": dataclasses.replace(result)})


def test_all_is_well():
    found = report(handover())
    assert cluster_demo.passed(found)
    assert found["a_to_b_tokens"] == found["ours_to_intree_tokens"] == found["intree_to_ours_tokens"] == 2 * WHOLE
    assert found["outputs_equal"] and found["kinds"]["llama"]["outputs_equal"]


@pytest.mark.parametrize(
    ("changes", "equal", "complaint"),
    [
        ({"loaded": [answer(WHOLE - BLOCK)], "again": [answer(WHOLE, loaded=0)]}, True, "768 tokens came from the cluster, not 896"),
        ({"loaded": [answer(WHOLE, computed=PROMPT)]}, True, "900 tokens were computed, not 4"),
        ({"loaded": [answer(WHOLE, token="token_id:8")]}, False, "token 0 is token_id:8"),
        ({"loaded": [answer(WHOLE, logprob=-0.51)], "again": [answer(WHOLE, logprob=-0.51)]}, False, "moved by 1.00e-02"),
        ({"again": [answer(WHOLE, logprob=-0.5 - 1e-9)]}, False, "than the engine's own cache"),
        ({"cluster_read_bytes": WHOLE * 4096 - 1}, True, "the engine says it loaded more"),
    ],
)
def test_what_fails(changes, equal, complaint):
    found = report(handover(**changes))
    assert not cluster_demo.passed(found)
    assert found["outputs_equal"] is equal
    assert any(complaint in fault for fault in found["kinds"]["llama"]["faults"]), found["kinds"]["llama"]["faults"]


def test_noise_of_another_order_of_sums_is_allowed():
    cold = [answer(0, loaded=0, logprob=-0.5 + 3e-5)]
    assert cluster_demo.passed(report(handover(cold=cold)))


def test_nothing_shown_is_no_success():
    assert not cluster_demo.passed(cluster_demo.summary({}))
