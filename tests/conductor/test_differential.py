"""The conductor against vLLM's own block pool and publisher, over the sockets that engines and routers use.

Several ranks allocate, share, copy, evict and forget blocks at random; some lose messages on the way, some are restarted.
Once the conductor has caught up, it says of every prompt what the rank's pool has.
"""

from __future__ import annotations

import random

import pytest
from pools import Prompts
from service import Conductor, until
from streams import caught_up, differences, heard, register

ROUNDS, STEPS = 12, 60


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("hashes", ["numbers", "bytes"])
def test_random_streams(conductor, ranks, relays, prompts, monkeypatch, seed, hashes):
    monkeypatch.setenv("VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES", "1" if hashes == "numbers" else "0")
    rng = random.Random(seed)
    all_ranks = [ranks("one", 0), ranks("one", 1), ranks("two"), ranks("three"), ranks("four")]
    lossy = {id(rank): relays(rank) for rank in all_ranks[1:4]}
    behind_relays = [(rank, lossy[id(rank)]) for rank in all_ranks[1:4]]
    for rank in all_ranks[:4]:
        register(conductor, rank, lossy.get(id(rank)))
    hits = restarts = 0
    for round_ in range(ROUNDS):
        if round_ == 3:  # one that has a past
            register(conductor, all_ranks[4])
        for relay in lossy.values():
            relay.loss = 0.1
        for _ in range(STEPS * len(all_ranks)):
            rng.choice(all_ranks).step()
        if round_ % 3 == 2:
            rng.choice(all_ranks).restart()
            restarts += 1
            for _ in range(STEPS):
                rng.choice(all_ranks).step()
        for rank, relay in behind_relays:
            heard(rank, relay)
            relay.loss = 0.0
        followed = all_ranks if round_ >= 3 else all_ranks[:4]
        caught_up(conductor, followed)
        found, more, less = differences(conductor, followed, prompts.known())
        assert not more and not less, f"round {round_}: {len(more)} more, {len(less)} less\n" + "\n".join((more + less)[:20])
        hits += found
    assert hits > 1000 and sum(relay.dropped for relay in lossy.values()) > 20
    services = conductor.services()
    assert sum(s["gaps"] for s in services.values()) > 0
    assert sum(s["restarts"] for s in services.values()) >= 1
    assert all(s["rejected"] == 0 for s in services.values())


def test_reported_reuse_says_never_more(conductor, ranks, prompts):
    """kv_cache_report_mode "full": reuse is reported in the words of a copy, so that some copies are not counted."""
    rank = ranks("reporting", report=True)
    register(conductor, rank)
    hits = short = 0
    for _ in range(8):
        for _ in range(STEPS):
            rank.step()
        caught_up(conductor, [rank])
        found, more, less = differences(conductor, [rank], prompts.known())
        assert not more, "\n".join(more[:20])
        hits, short = hits + found, short + len(less)
    assert hits > 500 and short < hits / 10


def test_what_replays_lack_is_forgotten(conductor, ranks, relays, prompts):
    """The publisher keeps five batches. What was lost before them can't be known: it is not claimed, and the answer says so."""
    rank = ranks("short", buffered=5)
    relay = relays(rank)
    register(conductor, rank, relay)
    rank.step()
    caught_up(conductor, [rank])
    incomplete = 0
    for _ in range(8):
        heard(rank, relay)
        relay.loss = 1.0
        for _ in range(40):
            rank.step()
        heard(rank, relay)
        relay.loss = 0.0
        for _ in range(3):
            rank.step()
        caught_up(conductor, [rank], state=None)
        _, more, _ = differences(conductor, [rank], prompts.known())
        assert not more, "\n".join(more[:20])
        row = conductor.query(**prompts.known()[0].query("model"))["short"]
        if row["state"] == "incomplete":
            incomplete += 1
            assert not row["complete"] and row["complete_since"] > 0
    assert incomplete > 0 and relay.dropped > 50


def test_unregistered_is_forgotten(conductor, ranks, prompts):
    rank, other = ranks("gone"), ranks("stays")
    for made in (rank, other):
        register(conductor, made)
        for _ in range(STEPS):
            made.step()
    caught_up(conductor, [rank, other])
    conductor.post("/unregister", type="vLLM", modelname="model", instance_id="gone", block_size=4, dp_rank=0)
    rows = conductor.query_many([request.query("model") for request in prompts.known()])
    assert all("gone" not in row for row in rows)
    assert not any(differences(conductor, [other], prompts.known())[1:])
    # Registered again it is replayed: all of it is known anew.
    register(conductor, rank)
    caught_up(conductor, [rank])
    assert not any(differences(conductor, [rank], prompts.known())[1:])


def test_conductor_killed(conductor, ranks, prompts):
    """A conductor that begins anew replays what engines still have."""
    all_ranks = [ranks("one"), ranks("two")]
    for rank in all_ranks:
        for _ in range(STEPS):
            rank.step()
        register(conductor, rank)
    caught_up(conductor, all_ranks)
    conductor.stop(9)
    for rank in all_ranks:
        for _ in range(STEPS):
            rank.step()
    conductor.start()
    for rank in all_ranks:
        register(conductor, rank)
    caught_up(conductor, all_ranks)
    assert not any(differences(conductor, all_ranks, prompts.known())[1:])


def test_many_engines_at_once(conductor, directory, function, ranks):
    """Sixteen engines, one prompt that all have: one answer names all of them."""
    prompts = Prompts(function, seed=5, letters=3)
    everybody = [ranks(f"engine-{n}", prompts=prompts) for n in range(16)]
    request = prompts.make([0, 1, 2, 0])
    for rank in everybody:
        assert rank.begin(request)
        rank.take()
        register(conductor, rank)
    caught_up(conductor, everybody)
    row = until(lambda: conductor.query(**request.query("model")), conductor.log)
    assert {name: r["longest_matched"] for name, r in row.items()} == {rank.name: 16 for rank in everybody}


def test_by_hash(conductor, ranks, prompts):
    """vLLM's own hashes ask for the same as tokens do, those of salted prompts and of adapters' as well."""
    rank = ranks("engine")
    register(conductor, rank)
    for _ in range(4 * STEPS):
        rank.step()
    caught_up(conductor, [rank])
    hits = 0
    for request in prompts.known():
        answer = conductor.post(
            "/query_by_hash", model="model", block_size=4, seq_hashes=request.external(), cache_salt=request.cache_salt, lora_name=request.adapter
        )
        held = 4 * rank.held(request)
        assert answer["default"]["engine"]["longest_matched"] == held, request.query("model")
        hits += held > 0
    assert hits > 50


def test_warm_restart(directory, ranks, prompts):
    """A snapshot and where the stream had got to: publishers that keep few batches only need not tell everything anew."""
    (directory / "snapshot").mkdir()
    rank = ranks("engine", buffered=25)  # twenty more than it takes, for an empty one comes with each second of waiting
    with Conductor(directory, ("--snapshot-dir", str(directory / "snapshot"))) as conductor:
        register(conductor, rank)
        caught_up(conductor, [rank])
        for _ in range(4 * STEPS):
            rank.step()
            if rank.sent % 3 == 0:
                caught_up(conductor, [rank])
        caught_up(conductor, [rank])
        assert conductor.stop() == 0, conductor.log()
        before = rank.sent
        while rank.sent < before + 3:
            rank.step()
        conductor.start()
        caught_up(conductor, [rank])
        hits, more, less = differences(conductor, [rank], prompts.known())
        assert hits > 50 and not more and not less, "\n".join((more + less)[:20])
