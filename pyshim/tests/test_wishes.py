"""Per-request wishes in kv_transfer_params: what they bound, and that no client can do harm with them."""

import msgspec
import pytest

pytest.importorskip("vllm")

from sent import stores

from mooncake_sidecar.wishes import MAX_TTL_S, NO_WISHES, parse


def boundaries(engine):
    """token_len of every store job until the engine rests."""
    found = []
    for _ in range(200):
        found += [part.token_len for part in stores(engine.step().stores)]
        if not engine.scheduler.has_requests():
            return found
    raise AssertionError("the engine does not come to rest")


def test_max_offload_tokens_bounds_what_is_stored(make_engine):
    engine = make_engine(budget=32, save_decode_cache=True)
    engine.add("a", 100, max_tokens=40, kv_transfer_params={"max_offload_tokens": 79})
    assert boundaries(engine) == [32, 64]
    engine.add("b", 40, max_tokens=60, seed=1, kv_transfer_params={"max_offload_tokens": 80})
    assert boundaries(engine) == [32, 48, 64, 80]
    assert engine.used() == 0


@pytest.mark.parametrize("params", [{"skip_save": True}, {"max_offload_tokens": 0}, {"max_offload_tokens": 15}])
def test_nothing_is_stored(make_engine, params):
    engine = make_engine(budget=64, save_decode_cache=True)
    engine.add("a", 100, max_tokens=40, kv_transfer_params=params)
    engine.step()
    assert engine.used() == len(engine.scheduler.kv_cache_manager.get_block_ids("a")[0]), "blocks are held for no job"
    assert boundaries(engine) == []


def test_the_bound_goes_to_the_daemon(make_engine):
    engine = make_engine(budget=256)
    engine.add("a", 100, kv_transfer_params={"max_offload_tokens": 64, "max_load_tokens": 7})
    (sent,) = stores(engine.step().stores)
    assert sent.most == 64
    assert (sent.token_len, sent.prefill_end, len(sent.tables[0])) == (64, 100, 4)
    assert engine.lookup.asked == [], "less than a block may be loaded"
    engine.drain()


@pytest.mark.parametrize(("most", "loaded"), [(16, 16), (31, 16), (32, 32), (99, 80), (0, 0)])
def test_max_load_tokens_bounds_what_is_loaded(make_engine, most, loaded):
    engine = make_engine(budget=256)
    engine.lookup.hits["a"] = 80
    engine.add("a", 100, kv_transfer_params={"max_load_tokens": most})
    loads = engine.step().loads
    assert [msgspec.msgpack.decode(load.frame[4:])["token_len"] for load in loads] == [loaded] * bool(loaded)
    engine.drain() if not loads else engine.step(received={"a"})
    engine.drain()


WRONG = [
    ({"max_load_tokens": "32"}, "max_load_tokens is '32'; write a whole number"),
    ({"max_offload_tokens": -1}, "max_offload_tokens is -1"),
    ({"max_offload_tokens": 1.5}, "max_offload_tokens is 1.5"),
    ({"max_load_tokens": True}, "max_load_tokens is True"),
    ({"skip_save": "yes"}, "skip_save is 'yes'; write true or false"),
    ({"skip_save": 1, "max_load_tokens": []}, "max_load_tokens is []"),
    ({"mooncake_sidecar": "hard"}, "mooncake_sidecar is 'hard'; write an object with pin and ttl_s"),
    ({"mooncake_sidecar": {"ttl": 5}}, "mooncake_sidecar has the unknown key 'ttl'; known are pin, ttl_s"),
    ({"mooncake_sidecar": {"ttl_s": -1}}, "ttl_s is -1; write whole seconds"),
    ({"mooncake_sidecar": {"ttl_s": MAX_TTL_S + 1}}, "; write whole seconds, 0 to 3153600000"),
    ({"mooncake_sidecar": {"ttl_s": True}}, "ttl_s is True"),
    ({"mooncake_sidecar": {"pin": 2}}, "pin is 2; write one of none, soft, hard"),
    ({"mooncake_sidecar": {"pin": ["hard"]}}, "pin is ['hard']"),
    ("all", "kv_transfer_params is 'all'; write an object"),
    ([1], "kv_transfer_params is [1]"),
    (7, "kv_transfer_params is 7"),
]


@pytest.mark.parametrize(("params", "message"), WRONG)
def test_wrong_wishes_are_named_and_ignored(make_engine, caplog, params, message):
    engine = make_engine(budget=256)
    counted = []
    engine.connector._scheduler._wishes._count = lambda name, value: counted.append((name, value))
    engine.add("a", 100, kv_transfer_params=params)
    (part,) = stores(engine.step().stores)
    assert part.most is None and part.label == ("", 0, 0)
    assert counted[0][0] == "wishes_ignored" and sum(value for _, value in counted) >= 1
    assert message in caplog.text and "request a" in caplog.text
    engine.drain()


@pytest.mark.parametrize(
    ("asked", "label"),
    [
        (None, ("", 3600, 1)),
        ({}, ("", 3600, 1)),
        ({"ttl_s": 600}, ("", 600, 1)),
        ({"pin": "hard"}, ("", 3600, 2)),
        ({"ttl_s": 0, "pin": "none"}, ("", 0, 0)),
        ({"ttl_s": 5, "pin": "most"}, ("", 5, 1)),
    ],
)
def test_what_is_stored_has_the_requests_label_or_the_engines(make_engine, asked, label):
    engine = make_engine(budget=256, store_ttl_s="1h", store_pin="soft")
    engine.add("a", 100, kv_transfer_params={"mooncake_sidecar": asked})
    assert [part.label for part in stores(engine.step().stores)] == [label]
    engine.drain()


def test_a_client_can_not_fill_the_log(make_engine, caplog):
    engine = make_engine(budget=256)
    engine.connector._scheduler._wishes._clock = lambda: 5.0
    for i in range(5):
        engine.add(f"r{i}", 20, seed=i, kv_transfer_params={"skip_save": "x" * 5000})
    engine.drain()
    said = [r.getMessage() for r in caplog.records if "skip_save" in r.getMessage()]
    assert len(said) == 1 and len(said[0]) < 500


def test_other_connectors_keys_are_left_alone():
    assert parse({"do_remote_prefill": True, "remote_host": "h"}) == (NO_WISHES, [])
    assert parse(None) == parse({}) == (NO_WISHES, [])
    assert parse({"skip_save": False, "max_load_tokens": None, "max_offload_tokens": 1 << 31}) == (NO_WISHES, [])
    found, wrong = parse({"skip_save": True, "max_offload_tokens": 64, "max_load_tokens": 0})
    assert (found.max_offload_tokens, found.max_load_tokens, wrong) == (0, 0, [])


def test_no_value_is_too_odd_to_complain_about():
    nested = []
    for _ in range(100_000):
        nested = [nested]
    for odd in (-(10**5000), float("nan"), [10**5000], {"a": -(10**5000)}, nested, ["x" * 10_000] * 1000, "x" * 10_000_000):
        for params in (
            {"mooncake_sidecar": {"ttl_s": odd}},
            {"mooncake_sidecar": {"pin": odd}},
            {"mooncake_sidecar": {"x" * 10**6: odd}},
            {"mooncake_sidecar": [odd]},
            {"max_load_tokens": odd},
            {"max_offload_tokens": odd},
            {"skip_save": odd},
            [odd],
        ):
            found, (wrong,) = parse(params)
            assert found == NO_WISHES and len(wrong) < 200
    assert parse({"max_load_tokens": 10**5000}) == (NO_WISHES, [])
    while nested:  # not all at once, which is deep
        nested = nested.pop()
