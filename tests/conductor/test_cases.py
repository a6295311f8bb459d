"""The cases in which other indexers go wrong, each with vLLM's own pool and publisher."""

from __future__ import annotations

import signal
import time

import pytest
from pools import BLOCK, Rank, Request
from service import free_port, until
from streams import MODEL, caught_up, register
from vllm.distributed.kv_events import BlockRemoved, BlockStored, KVEventBatch, ZmqEventPublisher


def tokens_held(conductor, rank: Rank, request: Request) -> int:
    return conductor.query(**request.query(MODEL))[rank.name]["longest_matched"]


def test_one_of_two_copies_is_removed(conductor, ranks, prompts):
    rank = ranks("engine", blocks=9)  # eight, and the null block
    register(conductor, rank)
    request = prompts.make([0, 1])
    assert rank.begin(request) and rank.begin(request, reuse=False)
    rank.end()
    other = prompts.make([1, 1, 1, 1, 0, 0])  # has to take what the second copy had
    assert rank.begin(other, reuse=False)
    rank.take()
    assert rank.held(request) == 2
    caught_up(conductor, [rank])
    assert tokens_held(conductor, rank, request) == 2 * BLOCK
    assert conductor.services()["engine", 0]["blocks"]["removed"] == 2
    # And the last copy: then it is gone.
    rank.end()
    rank.end()
    assert rank.begin(prompts.make([1, 0, 1, 0, 1, 0]), reuse=False) and rank.begin(prompts.make([1, 0]), reuse=False)
    rank.take()
    assert rank.held(request) == 0
    caught_up(conductor, [rank])
    assert tokens_held(conductor, rank, request) == 0


def test_salted_blocks_are_for_their_salt(conductor, ranks, prompts):
    rank = ranks("engine")
    register(conductor, rank)
    assert rank.begin(prompts.make([0, 1], salt="mine"))
    rank.take()
    caught_up(conductor, [rank])
    for salt, want in ((None, 0), ("mine", 2 * BLOCK), ("yours", 0)):
        assert tokens_held(conductor, rank, prompts.make([0, 1], salt=salt)) == want, salt


def test_adapters_blocks_are_for_their_adapter(conductor, ranks, prompts):
    rank = ranks("engine")
    register(conductor, rank)
    assert rank.begin(prompts.make([0, 1], adapter="red")) and rank.begin(prompts.make([1], salt="red"))
    rank.take()
    caught_up(conductor, [rank])
    for letters, salt, adapter, want in (
        ([0, 1], None, "red", 2 * BLOCK),
        ([0, 1], None, None, 0),
        ([0, 1], None, "blue", 0),
        ([0, 1], "red", None, 0),  # a salt of the adapter's name is none
        ([1], "red", None, BLOCK),
        ([1], None, "red", 0),  # nor is an adapter of the salt's
    ):
        assert tokens_held(conductor, rank, prompts.make(letters, salt, adapter)) == want, (letters, salt, adapter)


def test_publisher_restarted_on_the_same_port(conductor, ranks, prompts):
    rank = ranks("engine")
    register(conductor, rank)
    old, new = prompts.make([0, 1, 0]), prompts.make([1, 1])
    for _ in range(5):
        rank.publish([])
    assert rank.begin(old)
    rank.take()
    caught_up(conductor, [rank])
    assert tokens_held(conductor, rank, old) == 3 * BLOCK
    rank.restart()
    assert rank.begin(new)
    rank.take()
    caught_up(conductor, [rank])
    assert tokens_held(conductor, rank, old) == 0
    assert tokens_held(conductor, rank, new) == 2 * BLOCK


def test_restart_before_the_old_number_is_reached_again(conductor, ranks, prompts):
    """The new publisher's numbers go on just behind the old one's: nothing but what they have tells the two apart."""
    rank = ranks("engine")
    register(conductor, rank)
    old = prompts.make([0, 1, 0])
    assert rank.begin(old)
    rank.take()
    caught_up(conductor, [rank])
    seen = rank.sent
    conductor.process.send_signal(signal.SIGSTOP)  # it hears nothing
    try:
        rank.restart()
        for _ in range(seen + 1):
            rank.publish([])
        until(lambda: rank._publisher._event_queue.empty(), lambda: "the publisher does not publish")
    finally:
        conductor.process.send_signal(signal.SIGCONT)
    caught_up(conductor, [rank])
    assert tokens_held(conductor, rank, old) == 0


def test_a_past_is_replayed_at_registration(conductor, ranks, prompts):
    """No live message comes: what the engine has was told before anybody listened."""
    rank = ranks("engine")
    request = prompts.make([0, 1, 1])
    assert rank.begin(request)
    rank.take()
    register(conductor, rank)
    until(lambda: conductor.query(**request.query(MODEL))["engine"]["longest_matched"] == 3 * BLOCK, conductor.log)
    until(lambda: conductor.services()["engine", 0]["state"] == "complete", conductor.log)


@pytest.mark.parametrize("medium,tier", [("CPU", "CPU"), ("cpu", "CPU"), ("STORAGE", "DISK"), ("FS", "DISK"), ("OBJ", "DISK")])
def test_other_media(conductor, ranks, prompts, medium, tier):
    """Offloaded blocks are told of with their hashes alone, as vLLM's offloading connector does."""
    rank = ranks("engine", blocks=5)
    register(conductor, rank)
    request = prompts.make([0, 1, 0, 0])
    assert rank.begin(request)
    rank.take()
    rank.publish([BlockStored(block_hashes=request.external()[:3], parent_block_hash=None, token_ids=[], block_size=0, lora_id=None, medium=medium, lora_name=None)])
    rank.end()
    assert rank.begin(prompts.make([1, 1, 1, 1]))  # takes all of GPU memory
    rank.take()
    caught_up(conductor, [rank])
    row = conductor.query(**request.query(MODEL))["engine"]
    assert {name: row[name] for name in ("GPU", "CPU", "DISK")} == {"GPU": 0, "CPU": 0, "DISK": 0} | {tier: 3 * BLOCK}
    assert row["longest_matched"] == 3 * BLOCK
    rank.publish([BlockRemoved(block_hashes=request.external()[1:2], medium=medium)])
    caught_up(conductor, [rank])
    assert conductor.query(**request.query(MODEL))["engine"][tier] == BLOCK


def test_an_unknown_medium_is_not_the_gpu(conductor, ranks, prompts):
    rank = ranks("engine")
    register(conductor, rank)
    request = prompts.make([0])
    rank.publish([BlockStored(block_hashes=request.external(), parent_block_hash=None, token_ids=request.all_token_ids, block_size=BLOCK, lora_id=None, medium="TAPE", lora_name=None)])
    caught_up(conductor, [rank])
    assert tokens_held(conductor, rank, request) == 0


def test_a_bad_event_costs_itself(conductor, ranks, prompts):
    rank = ranks("engine")
    register(conductor, rank)
    request = prompts.make([0, 1])
    good = {"block_hashes": request.external(), "parent_block_hash": None, "token_ids": request.all_token_ids, "block_size": BLOCK, "lora_id": None, "medium": "GPU", "lora_name": None}
    rank.publish([{"type": "BlockStored", "block_hashes": "none"}, {"type": "BlockStored"} | good])
    caught_up(conductor, [rank])
    assert tokens_held(conductor, rank, request) == 2 * BLOCK
    assert conductor.services()["engine", 0]["rejected"] == 1


def test_events_as_arrays(conductor, ranks, prompts):
    """vLLM before 0.24, and SGLang."""
    rank = ranks("engine")
    register(conductor, rank)
    request = prompts.make([0, 1])
    rank.publish([["BlockStored", request.external(), None, request.all_token_ids, BLOCK, None, "GPU", None]])
    caught_up(conductor, [rank])
    assert tokens_held(conductor, rank, request) == 2 * BLOCK
    rank.publish([["BlockRemoved", request.external()[1:], "GPU"]])
    caught_up(conductor, [rank])
    assert tokens_held(conductor, rank, request) == BLOCK


def test_tenants_are_apart(conductor, ranks, prompts):
    rank, theirs = ranks("engine"), ranks("engine-of-theirs")
    register(conductor, rank)
    register(conductor, theirs, tenant_id="theirs")
    request = prompts.make([0, 1])
    assert theirs.begin(request)
    theirs.take()
    caught_up(conductor, [rank, theirs])
    assert conductor.post("/query", **request.query(MODEL))["default"]["engine"]["longest_matched"] == 0
    answer = conductor.post("/query", **request.query(MODEL), tenant_id="theirs")
    assert list(answer) == ["theirs"] and answer["theirs"]["engine-of-theirs"]["longest_matched"] == 2 * BLOCK


def test_ranks_of_one_engine_on_neighbouring_ports(conductor, prompts):
    """As vLLM does it itself: a rank's ports are those of rank 0 and its number more."""
    request = prompts.make([0, 1])
    live = free_port(count=4)
    replay, publishers = live + 2, []
    try:
        for rank in (0, 1):
            publishers.append(ZmqEventPublisher(rank, f"tcp://*:{live}", f"tcp://*:{replay}"))
        for rank in (0, 1):  # not before: the conductor's own connections take ports, too
            conductor.post(
                "/register", endpoint=f"tcp://127.0.0.1:{live + rank}", replay_endpoint=f"tcp://127.0.0.1:{replay + rank}", type="vLLM",
                modelname=MODEL, instance_id="engine", block_size=BLOCK, dp_rank=rank,
            )
        stored = BlockStored(block_hashes=request.external(), parent_block_hash=None, token_ids=request.all_token_ids, block_size=BLOCK, lora_id=None, medium="GPU", lora_name=None)
        publishers[1].publish(KVEventBatch(ts=time.time(), events=[stored]))
        row = until(lambda: (r := conductor.query(**request.query(MODEL))["engine"])["longest_matched"] and r, conductor.log)
        assert row["DP"] == {"0": 0, "1": 2 * BLOCK}
    finally:
        for publisher in publishers:
            publisher.shutdown()
