"""Side by side with the in-tree connector: the same hit lengths, and its own lookup client understands our server."""

import socket
import types

import pytest

from harness import mooncake
from harness.cell import whole
from harness.engine import BLOCK, Engine, in_tree
from harness.prompts import block_hashes
from harness.segment import Segment

PROMPTS = 200
LONGEST = 1100

needs_master = pytest.mark.skipif(mooncake.available() is not None, reason=str(mooncake.available()))


def hit_lengths(engine, prompts):
    """Cached tokens of each prompt when only the connector remembers the earlier ones."""
    hits = []
    for prompt in prompts:
        hits.append(engine.client.complete(prompt, 1).cached_tokens)
        engine.forget()
    return hits


@needs_master
def test_hit_lengths_equal(model, shared, cut, directory):
    prompts = cut.families(PROMPTS, LONGEST)
    shared.forget()
    ours = hit_lengths(shared.engine, prompts)
    with mooncake.Master(directory) as master:
        with Engine(model, directory, connector=in_tree(), environment=master.environment, name="in-tree") as engine:
            engine.wait_ready()
            theirs = hit_lengths(engine, prompts)
    differing = [(i, len(p), a, b) for i, (p, a, b) in enumerate(zip(prompts, ours, theirs)) if a != b]
    assert not differing, f"(prompt, length, our hit, in-tree hit): {differing[:10]}"
    assert sum(h > 0 for h in theirs) > PROMPTS // 4, "too few hits to compare"
    assert len(set(theirs)) > 4, "too few different hit lengths to compare"


@pytest.fixture()
def lookup_client(shared, monkeypatch):
    """The unmodified client of the in-tree connector, on the shared engine's lookup socket."""
    from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.worker import LookupKeyClient

    monkeypatch.setenv("VLLM_RPC_BASE_PATH", str(shared.directory))
    config = types.SimpleNamespace(
        parallel_config=types.SimpleNamespace(data_parallel_index=0),
        kv_transfer_config=types.SimpleNamespace(kv_connector_extra_config={}),
    )
    path = shared.directory / f"lookup_rpc_port_0_host_{socket.gethostname()}_dp_rank0"
    assert path.is_socket(), f"the engine has no lookup socket at {path}"
    client = LookupKeyClient(config)
    yield client
    client.close()


def test_in_tree_lookup_client(shared, cut, lookup_client):
    stored = cut.fresh(10 * BLOCK)
    shared.client.complete(stored, 1)
    shared.settle()
    hashes = block_hashes(stored)
    with Segment(shared.daemons.wait("mooncake-lookupd")) as segment:
        assert set(hashes) <= {c.hash for c in segment.chunks()}

    longer = stored + cut.text(3 * BLOCK + 5)
    beside = stored[: 4 * BLOCK] + cut.text(5 * BLOCK)
    for prompt, hit in ((longer, 10 * BLOCK), (beside, 4 * BLOCK), (cut.fresh(600), 0), (stored, whole(stored)), (stored[:100], 0)):
        answer = lookup_client.lookup("request", len(prompt), block_hashes(prompt))
        assert answer.hit_length == hit


def test_in_tree_reset(shared, cut):
    """`reset` through the engine's own API empties the store, of this engine's namespace."""
    prompt = cut.fresh(1000)
    shared.client.complete(prompt, 1)
    shared.forget(everywhere=True)
    assert shared.loaded(prompt)[1] == 0
    shared.forget()
    assert shared.loaded(prompt)[1] == whole(prompt)
    shared.forget()
