"""Partial tails: against the in-tree connector's planner, and through the scheduler role."""

import random
import struct
from types import SimpleNamespace

import pytest
from conftest import make_geometry
from sent import stores
from test_pins import Pool

from mooncake_sidecar.jobs import Report
from mooncake_sidecar.lookup import MISS
from mooncake_sidecar.messages import GroupSpec
from mooncake_sidecar.scheduler import SchedulerRole
from mooncake_sidecar.tails import TailPlanner, checkpoint, proof_margins

HASH, BLOCK = 4, 16


def geometry(use_eagle=False, marked=(), sizes=(16, 8, 16)):
    """Full attention, a sliding window and recurrent state, with fine hits."""
    made = make_geometry(BLOCK, hash_tokens=HASH, alignment=HASH, use_eagle=use_eagle, kinds=["full_attention"] * 3)
    kinds = ("full_attention", "sliding_window", "mamba_align")
    made.spec.groups[:] = [
        GroupSpec(kind, size, 64 if "window" in kind else 0, index in marked, kind, 256, 1)
        for index, (kind, size) in enumerate(zip(kinds, sizes, strict=True))
    ]
    return made


def role(geo, saves=True):
    lookup = SimpleNamespace(ask=lambda *a: MISS, discard=lambda r: None, new_step=lambda: None, generation=1)
    made = SchedulerRole(
        geo, lookup, lambda r: None, epoch=1, ranks=1, loads=True, saves=saves, saves_decode=False, by_block=False
    )
    pool = Pool()
    made.bind(pool)
    return made, pool


def request(tokens):
    return SimpleNamespace(
        request_id="r",
        num_tokens=tokens,
        num_prompt_tokens=tokens,
        num_computed_tokens=tokens,
        block_hashes=[struct.pack(">Q", i) * 4 for i in range(tokens // HASH)],
        cache_salt="salt",
        kv_transfer_params=None,
        skip_reading_prefix_cache=False,
    )


def step(new=None, scheduled=None, tables=((), (), ()), offers=None, finished=()):
    state = SimpleNamespace(
        boundary_state_offloads=offers or {}, get_block_ids=lambda name: tuple(list(t) for t in tables)
    )
    fresh = []
    if new is not None:
        fresh = [SimpleNamespace(req_id="r", num_computed_tokens=0, prefill_token_ids=None, prompt_token_ids=[0] * new)]
    cached = SimpleNamespace(req_ids=[], resumed_req_ids=set(), num_computed_tokens=[])
    return SimpleNamespace(
        finished_req_ids=set(finished),
        preempted_req_ids=set(),
        scheduled_new_reqs=fresh,
        scheduled_cached_reqs=cached,
        num_scheduled_tokens={"r": scheduled},
        kv_connector_block_state=state,
    )


TABLES = ([1, 2, 3], [11, 12, 13, 14, 15, 16], [21, 22, 23])


def test_the_tail_goes_with_the_save_that_covers_the_prompt():
    made, pool = role(geometry())
    made.match(request(43), 0)
    (command,) = made.commands(step(new=43, scheduled=43, tables=TABLES)).stores
    (sent,) = stores([command])
    # The checkpoint of 43 tokens is at 40; regular saves reach 32.
    assert sent.token_len == 32
    assert sent.puts == [(0, 3, 40), (1, 15, 40)]
    assert sent.tables[2] == [] and len(sent.hashes) == 10 * 32
    assert len(sent.label[0]) == 16 and sent.label[0] != "salt"
    assert pool.held() == {1, 2, 11, 12, 13, 14, 3, 15}
    made.report(Report({command.job: 1}))
    assert pool.held() == set()


def test_states_are_stored_from_their_hand_off():
    made, pool = role(geometry())
    made.match(request(43), 0)
    made.commands(step(new=43, scheduled=43, tables=TABLES))
    later = step(tables=TABLES, offers={"r": [(2, 23, 40), (2, 0, 16), (2, 22, 99), (0, 1, 16)], "gone": [(2, 5, 16)]})
    (command,) = made.commands(later).stores
    (sent,) = stores([command])
    assert sent.token_len == 0
    assert sent.puts == [(0, 3, 40), (1, 15, 40), (2, 23, 40)]
    assert 23 in pool.held()


def test_a_tail_finished_with_its_request_is_held_and_sent_with_the_next_step():
    made, pool = role(geometry())
    req = request(43)
    made.match(req, 0)
    first = made.commands(step(new=43, scheduled=43, tables=TABLES)).stores
    made.report(Report({command.job: 1 for command in first}))
    assert made.finished_tail(req, TABLES, [(2, 23, 40)]) is False
    assert pool.held() == {3, 15, 23} and made.pending
    commands = made.commands(step(finished=["r"]))
    assert [p.puts for p in stores(commands.stores)] == [[(0, 3, 40), (1, 15, 40), (2, 23, 40)]]
    # Retired one step later: workers retire before they take a step's jobs.
    assert commands.finished == []
    assert made.commands(step()).finished == ["r"]
    made.report(Report({commands.stores[0].job: 1}))
    assert pool.held() == set() and not made.pending


def test_an_id_that_begins_again_with_its_tail_is_retired_at_once():
    """Else ranks take what was saved of the old request for the new one's, or forget the new one."""
    made, pool = role(geometry())
    req = request(43)
    made.match(req, 0)
    first = made.commands(step(new=43, scheduled=43, tables=TABLES)).stores
    made.report(Report({command.job: 1 for command in first}))
    made.finished_tail(req, TABLES, [(2, 23, 40)])
    made.finished(req)
    made.match(request(32), 0)
    commands = made.commands(step(new=32, scheduled=32, tables=TABLES, finished=["r"]))
    assert [(p.request, p.token_len) for p in stores(commands.stores)] == [("r", 0), ("r", 32)]
    assert commands.finished == ["r"]
    assert made.commands(step()).finished == []
    made.report(Report({command.job: 1 for command in commands.stores}))
    assert pool.held() == set() and not made.pending


def test_a_tail_that_a_reset_overtakes_is_let_go():
    """It goes out with the next step, whose epoch is a newer one: what the reset dropped must not come back."""
    made, pool = role(geometry())
    req = request(43)
    made.match(req, 0)
    first = made.commands(step(new=43, scheduled=43, tables=TABLES)).stores
    made.report(Report({command.job: 1 for command in first}))
    made.finished_tail(req, TABLES, [(2, 23, 40)])
    made._lookup.reset = lambda: True
    assert made.reset()
    assert pool.held() == set() and not made.pending
    commands = made.commands(step(finished=["r"]))
    assert commands.stores == [] and commands.finished == ["r"]


@pytest.mark.parametrize("offers", [[], [(2, 0, 40)], [(0, 3, 40)], [(2, 23, 99)], [(2, 23, 40), (2, 22, 36)]])
def test_tails_that_can_not_be_used_are_left(offers):
    made, pool = role(geometry())
    req = request(43)
    made.match(req, 0)
    first = made.commands(step(new=43, scheduled=43, tables=TABLES)).stores
    made.report(Report({command.job: 1 for command in first}))
    assert made.finished_tail(req, TABLES, offers) is False
    assert pool.held() == set() and not made.pending


def test_margins():
    assert proof_margins(geometry()) == {}
    assert proof_margins(geometry(use_eagle=True, marked=(0,))) == {0: HASH}
    assert proof_margins(geometry(use_eagle=True)) == {0: HASH, 1: 8}


def test_the_planner_agrees_with_the_in_tree_one():
    reference = pytest.importorskip("vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.scheduler")
    data = pytest.importorskip("vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.data")
    rng = random.Random(8)
    compared = 0
    for _ in range(3000):
        eagle = rng.random() < 0.4
        marked = tuple(g for g in (0, 1) if rng.random() < 0.5) if eagle else ()
        geo = geometry(eagle, marked, rng.choice([(16, 16, 16), (16, 8, 16), (4, 8, 16)]))
        sizes = geo.block_tokens
        prompt = rng.randrange(1, 120)
        completed = rng.randrange(1, prompt + 20)
        tables = tuple([rng.choice([0, rng.randrange(1, 500)]) for _ in range(rng.randrange(40))] for _ in sizes)
        hashes = [bytes(32)] * rng.randrange(40)
        spot = rng.choice([checkpoint(prompt, HASH, eagle), rng.randrange(120) // HASH * HASH])
        states = [(2, 7, spot)] if rng.random() < 0.5 else []
        publish = rng.random() < 0.5
        margins = proof_margins(geo)
        expected = reference._partial_tail_non_mamba_puts(
            SimpleNamespace(
                mamba_group_ids={2},
                hash_block_size=HASH,
                use_eagle=eagle,
                lcm_block_size=BLOCK,
                eagle_proof_margin_by_group=margins,
            ),
            SimpleNamespace(
                boundary_puts=[data.BoundaryPut(*put) for put in states],
                publish_partial_tail=publish,
                num_prompt_tokens=prompt,
                completed_token_len=completed,
                block_hashes=hashes,
                block_ids=tables,
            ),
            sizes,
        )
        got = TailPlanner(geo, margins).puts(tables, states, prompt, completed, len(hashes), publish)
        assert got == [(put.group_id, put.block_id, put.num_tokens) for put in expected]
        compared += bool(got)
    assert compared > 200
