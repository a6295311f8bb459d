import pytest

from mooncake_sidecar import config


def test_defaults_need_nothing():
    settings = config.parse(None)
    assert settings.lookup_timeout_ms == 50
    assert settings.autostart and settings.verify and settings.enable_lookup
    assert not settings.save_decode_cache and not settings.lookup_async


@pytest.mark.parametrize(
    ("value", "expected"),
    [("4GiB", 4 << 30), ("4GB", 4 << 30), ("512m", 512 << 20), (1024, 1024), ("1.5K", 1536), (" 2 TiB ", 2 << 40)],
)
def test_sizes(value, expected):
    assert config.parse({"store_bytes": value}).store_bytes == expected


@pytest.mark.parametrize("value", ["", "4 parsecs", -1, 0, True, None, 1.5, "0"])
def test_bad_sizes(value):
    with pytest.raises(ValueError, match="store_bytes"):
        config.parse({"store_bytes": value})


@pytest.mark.parametrize(("value", "expected"), [(10, 10), ("15m", 900), ("500ms", 0.5), (2.5, 2.5)])
def test_durations(value, expected):
    assert config.parse({"load_timeout_s": value}).load_timeout_s == expected


def test_what_is_stored_may_have_a_life_and_a_pin():
    assert (config.parse({}).store_ttl_s, config.parse({}).store_pin) == (0, "none")
    settings = config.parse({"store_ttl_s": "12h", "store_pin": "hard"})
    assert (settings.store_ttl_s, settings.store_pin) == (43200, "hard")


def test_unknown_key_names_the_nearest_and_lists_all():
    with pytest.raises(ValueError) as caught:
        config.parse({"lookup_asink": True})
    text = str(caught.value)
    assert "'lookup_asink'" in text and "'lookup_async'" in text
    assert all(key in text for key in config.known_keys())


def test_synchronous_loads_are_refused():
    with pytest.raises(ValueError, match="load_async is false"):
        config.parse({"load_async": False})
    assert config.parse({"load_async": True}).load_async


def test_keys_of_the_in_tree_connector_are_accepted(caplog):
    settings = config.parse(
        {
            "lookup_async": "True",
            "enable_lookup": False,
            "save_decode_cache": True,
            "cache_prefix": "p",
            "preferred_segment": "s",
            "enable_group_semantics": "False",
            "store_tp_size": 4,
            "enable_store_tp_lcm": True,
            "prefill_tp_sizes": [1, 2],
            "enable_cross_layers_blocks": "False",
            "custom_mem_pool": "NVLINK",
            "lookup_rpc_port": "7",
        }
    )
    assert settings.lookup_async and not settings.enable_lookup and settings.lookup_rpc_port == 7
    config.warn_ignored(settings)
    assert len(caplog.records) == 1
    assert "custom_mem_pool" in caplog.text and "cache_prefix" not in caplog.text


def test_shards_that_engines_share():
    assert config.parse({}).shards_wanted == 0
    assert config.parse({"store_tp_size": 4}).shards_wanted == 4
    settings = config.parse({"store_tp_size": 4, "enable_store_tp_lcm": True, "prefill_tp_sizes": [2, 3]})
    assert settings.shards_wanted == 6, "in-tree, the multiple goes first"
    with pytest.raises(ValueError, match="prefill_tp_sizes is not set"):
        config.parse({"enable_store_tp_lcm": True})
    with pytest.raises(ValueError, match="least common multiple is 72"):
        config.parse({"enable_store_tp_lcm": True, "prefill_tp_sizes": [8, 9]})


@pytest.mark.parametrize(
    "extra",
    [
        {"lookup_timeout_ms": 0},
        {"lookup_timeout_ms": "soon"},
        {"lookup_rpc_port": 70000},
        {"cache_prefix": 3},
        {"autostart": "maybe"},
        {"linger_s": -1},
        {"log_level": "loud"},
        {"store": "redis"},
        {"mooncake_write": "never"},
        {"mooncake_reset": "all"},
        {"store_ttl_s": -1},
        {"store_ttl_s": 1.5},
        {"store_ttl_s": True},
        {"store_ttl_s": "soon"},
        {"store_ttl_s": 1 << 40},
        {"store_pin": "yes"},
        {"store_pin": 1},
        {"preferred_segment": ""},
        {"store_tp_size": 0},
        {"store_tp_size": 65},
        {"store_tp_size": True},
        {"prefill_tp_sizes": []},
        {"prefill_tp_sizes": [2, "x"]},
    ],
)
def test_values_that_do_not_fit_name_their_key(extra):
    with pytest.raises(ValueError, match=next(iter(extra))):
        config.parse(extra)


def test_lookups_are_asynchronous_where_others_have_to_be_asked(monkeypatch):
    monkeypatch.delenv("MOONCAKE_SIDECAR_STORE", raising=False)
    assert not config.parse({}).lookups_beside
    assert not config.parse({"store": "embedded"}).lookups_beside
    assert config.parse({"store": "mooncake"}).lookups_beside
    assert not config.parse({"store": "mooncake", "lookup_async": False}).lookups_beside
    assert config.parse({"lookup_async": True}).lookups_beside
    monkeypatch.setenv("MOONCAKE_SIDECAR_STORE", "mooncake")
    assert config.parse({}).lookups_beside
    assert not config.parse({"store": "embedded"}).lookups_beside
