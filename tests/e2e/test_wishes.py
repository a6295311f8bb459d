"""What clients ask for one request, and what vLLM's /metrics says of the store, over HTTP."""

import json
import re

import pytest
from harness.cell import SHARD_BYTES, whole


def ask(cell, prompt, wishes, max_tokens=4):
    """A completion with kv_transfer_params; returns the tokens that the store brought by the engine's count."""
    before = cell.client.metrics().external_hit_tokens
    body = {"model": cell.client.model, "prompt": list(prompt), "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    answer = json.loads(cell.client.call("POST", "/v1/completions", body | {"kv_transfer_params": wishes}))
    assert answer["usage"]["completion_tokens"] == max_tokens
    return cell.client.metrics().external_hit_tokens - before


@pytest.mark.parametrize(
    ("wishes", "stored"),
    [({"max_offload_tokens": 700}, 640), ({"skip_save": True}, 0), ({"max_offload_tokens": 0}, 0), ({}, 1280)],
)
def test_at_most_so_many_tokens_are_stored(shared, cut, wishes, stored):
    prompt = cut.fresh(1300)
    assert ask(shared, prompt, wishes) == 0
    shared.forget()
    assert ask(shared, prompt, {"skip_save": True}) == stored
    shared.forget()


def test_at_most_so_many_tokens_are_loaded(shared, cut):
    prompt = cut.fresh(1300)
    ask(shared, prompt, {})
    for most, loaded in ((0, 0), (127, 0), (128, 128), (640, 640), (1000, 896), (5000, 1280)):
        shared.forget()
        assert ask(shared, prompt, {"max_load_tokens": most}) == loaded
    shared.forget()


def test_nonsense_harms_no_one(shared, cut):
    prompt = cut.fresh(300)
    for wishes in ({"max_load_tokens": "many"}, {"max_offload_tokens": -5}, {"skip_save": []}, {"max_load_tokens": 1 << 60}):
        ask(shared, prompt, wishes)
    shared.forget()
    assert ask(shared, prompt, {}) == whole(prompt)
    log = shared.engine.log_tail(5000)
    assert "max_load_tokens is 'many'; write a whole number of tokens" in log
    shared.forget()


SERIES = re.compile(
    r'^vllm:mooncake_store_operation_(\w+)\{.*?engine="0".*?operation="(\w+)".*?status="(\w+)"\} (\S+)$', re.MULTILINE
)


def operations(cell):
    """(series, operation, status) -> value of the in-tree connector's series, histogram buckets left out."""
    text = cell.client.call("GET", "/metrics")
    return {m[:3]: float(m[3]) for m in SERIES.findall(text) if "bucket" not in m[0] and "created" not in m[0]}


def from_host(cell):
    """Prompt tokens that vLLM counts as found in host memory."""
    return cell.client.metrics().value("vllm:prompt_tokens_cached_by_source_total", 'source="host"')


def test_metrics_are_those_of_the_in_tree_connector(shared, cut):
    """The numbers follow from what was done: ten blocks looked up, stored, looked up and loaded."""
    before, host = operations(shared), from_host(shared)
    prompt = cut.fresh(1281)
    shared.client.complete(prompt, 1)
    shared.forget()
    shared.client.complete(prompt, 1)
    shared.settle()
    after = operations(shared)
    grown = {key: value - before.get(key, 0) for key, value in after.items() if key[2] == "ok"}
    for operation, count, keys, size in (
        ("lookup_exists", 2, 20, 0),
        ("save_exists", 1, 10, 0),  # what was loaded is not offered
        ("save_put", 1, 10, 10 * SHARD_BYTES),
        ("load_get", 1, 10, 10 * SHARD_BYTES),
    ):
        found = {name: grown[name, operation, "ok"] for name in ("total", "keys_total", "bytes_total", "failed_keys_total")}
        assert found == {"total": count, "keys_total": keys, "bytes_total": size, "failed_keys_total": 0}, operation
        assert grown["time_seconds_count", operation, "ok"] == count
        assert 0 < grown["time_seconds_sum", operation, "ok"] < 60
    assert from_host(shared) - host == 1280
