"""What vLLM's own metrics code makes of the connector's statistics."""

import struct
from types import SimpleNamespace

import msgspec
import pytest

pytest.importorskip("vllm")

from engine import Engine, vllm_config, write_model
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorLogging, KVConnectorProm
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.metrics import (
    MooncakeStoreConnectorStats,
    MooncakeStorePromMetrics,
)
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector
from vllm.v1.metrics.cache_hit_source import CacheHitSource

import mooncake_sidecar
from mooncake_sidecar import messages as msg
from mooncake_sidecar import tiers
from mooncake_sidecar.link import Outcome
from mooncake_sidecar.lookup import Hit, decode_answer
from mooncake_sidecar.observing import Jobs, Lookups
from mooncake_sidecar.prom import SidecarPromMetrics
from mooncake_sidecar.stats import SidecarStats

SOME = [(0.0004, 8, 0, "ok", 0), (0.03, 5, 512, "partial_failure", 2), (9.0, 3, 0, "error", 3), (0.0021, 1, 64, "ok", 0)]


def kinds(registry):
    """Metric types that end up in a registry of the test's own."""
    return {k: (lambda k: lambda **a: k(registry=registry, **a))(k) for k in (Counter, Gauge, Histogram)}


def filled():
    ours, theirs = SidecarStats(), MooncakeStoreConnectorStats()
    for operation in ("lookup_exists", "load_get"):
        for seconds, keys, moved, status, failed in SOME:
            ours.record(operation, seconds, keys, moved, status, failed)
            theirs.record_operation(
                operation, seconds, keys, num_bytes=moved, status=status, num_failed_keys=failed
            )
    return ours, theirs


def test_series_are_those_of_the_in_tree_connector():
    """Names, help aside, types, labels, buckets and values: a dashboard can't tell them apart."""
    ours, theirs = filled()
    ours.add("loads_failed", 3)  # must not disturb
    texts = []
    for made, stats in ((SidecarPromMetrics, ours), (MooncakeStorePromMetrics, theirs)):
        registry = CollectorRegistry()
        config = SimpleNamespace(kv_transfer_config=None)
        metrics = made(config, kinds(registry), ["model_name", "engine"], {0: ["m", "0"], 1: ["m", "1"]})
        # As it comes out of the engine core's message.
        data = msgspec.msgpack.decode(msgspec.msgpack.encode(stats.to_dict()))
        metrics.observe(data, 0)
        metrics.observe(data, 1)
        metrics.observe(None)
        lines = generate_latest(registry).decode().splitlines()
        texts.append(sorted(line for line in lines if not line.startswith("# HELP") and "_created" not in line))
    assert texts[0] == texts[1]
    assert any("vllm:mooncake_store_operation_failed_keys_total" in line for line in texts[0])


def test_the_log_line_says_what_the_in_tree_connectors_says():
    ours, theirs = filled()
    assert ours.reduce() == theirs.reduce()
    ours.add("lookup_timeouts", 2)
    assert ours.reduce() == {**theirs.reduce(), "lookup_timeouts": 2}


def test_ranks_and_roles_are_added_up():
    total = SidecarStats()
    for _ in range(2):
        part, _ = filled()
        part.add("stores_failed")
        total = total.aggregate(SidecarStats(msgspec.msgpack.decode(msgspec.msgpack.encode(part.to_dict()))))
    reduced = total.reduce()
    assert (reduced["load_get_count"], reduced["load_get_failed_keys"], reduced["stores_failed"]) == (8, 10, 2)
    taken = total.take()
    assert taken.reduce() == reduced and total.is_empty() and total.take() is None


def test_inside_multi_connector(tmp_path, runtime_dir, monkeypatch):
    """vLLM's own path from an engine core's statistics to /metrics and the log."""
    mooncake_sidecar.register()
    child = {"kv_connector": "MooncakeSidecarConnector", "kv_role": "kv_both", "kv_connector_extra_config": {}}
    config = vllm_config(write_model(tmp_path), 200, runtime_dir)
    config.kv_transfer_config = KVTransferConfig(
        kv_connector="MultiConnector", kv_role="kv_both", kv_connector_extra_config={"connectors": [child, child]}
    )
    registry = CollectorRegistry()
    for kind, made in kinds(registry).items():
        monkeypatch.setattr(KVConnectorProm, f"_{kind.__name__.lower()}_cls", staticmethod(made))
    prom = KVConnectorProm(config, ["model_name", "engine"], {0: ["m", "0"]})
    log = KVConnectorLogging(config.kv_transfer_config)

    stats = MultiConnector.build_kv_connector_stats()
    stats["MooncakeSidecarConnector"] = filled()[0]
    data = msgspec.msgpack.decode(msgspec.msgpack.encode(stats.to_dict()))
    prom.observe(data, 0)
    log.observe(data)
    log.observe(data)
    text = generate_latest(registry).decode()
    labels = 'engine="0",model_name="m",operation="load_get",status="ok"'
    assert f"vllm:mooncake_store_operation_keys_total{{{labels}}} 9.0" in text
    lines = []
    log.log(lambda line, *a: lines.append(line % a))
    assert "'load_get_count': 8" in lines[0]


def test_beside_the_in_tree_connector_the_engine_starts(caplog):
    registry = CollectorRegistry()
    config = SimpleNamespace(kv_transfer_config=None)
    MooncakeStorePromMetrics(config, kinds(registry), ["engine"], {0: ["0"]})
    ours = SidecarPromMetrics(config, kinds(registry), ["engine"], {0: ["0"]})
    ours.observe(filled()[0].to_dict())
    assert "in the log only" in caplog.text


def outcome(kind, status="ok", result=None, **fields):
    if result is None and fields:
        result = msg.Result(job=1, kind=kind, status=status, **fields)
    return Outcome(1, kind, "r", status, b"", result, 2.5)


@pytest.mark.parametrize(
    ("what", "want"),
    [
        (
            outcome("store", asked=9, existing=4, chunks=5, bytes=50, us=9000, ask_us=1000, move_us=4000),
            {"save_exists": [(0.001, 9, 0, "ok", 0)], "save_put": [(0.004, 5, 50, "ok", 0)]},
        ),
        (outcome("store", asked=9, existing=9, us=9, ask_us=3), {"save_exists": [(3e-6, 9, 0, "ok", 0)]}),
        (outcome("store", us=7), {}),
        (
            outcome("store", "failed", reason="no_space", asked=4, chunks=1, bytes=8, ask_us=1, move_us=2),
            {
                "save_exists": [(1e-6, 4, 0, "ok", 0)],
                "save_put": [(2e-6, 4, 8, "partial_failure", 3)],
                "counters": {"stores_failed": 1},
            },
        ),
        (
            outcome("store", "dropped", reason="no_store", asked=4, ask_us=5),
            {"save_exists": [(5e-6, 4, 0, "error", 4)], "counters": {"stores_dropped": 1}},
        ),
        (
            outcome("store", "failed", reason="copy_failed", asked=4, existing=1, ask_us=5, move_us=1),
            {
                "save_exists": [(5e-6, 4, 0, "ok", 0)],
                "save_put": [(1e-6, 3, 0, "error", 3)],
                "counters": {"stores_failed": 1},
            },
        ),
        (outcome("load", asked=3, chunks=3, bytes=24, us=90, ask_us=1, move_us=2), {"load_get": [(3e-6, 3, 24, "ok", 0)]}),
        (
            outcome("load", "failed", reason="absent", asked=3, chunks=1, bytes=8, ask_us=1, move_us=1),
            {"load_get": [(2e-6, 3, 8, "partial_failure", 2)], "counters": {"loads_failed": 1}},
        ),
        (outcome("load", "failed"), {"load_get": [(2.5, 0, 0, "error", 0)], "counters": {"loads_failed": 1}}),
        (outcome("load", "dropped", reason="queue_full", us=1), {"counters": {"loads_dropped": 1}}),
    ],
)
def test_a_jobs_end_becomes_operations(what, want):
    stats = SidecarStats()
    Jobs(stats)(what)
    assert stats.data == want


def test_a_lookup_counts_chunks_of_all_groups():
    stats = SidecarStats()
    note = Lookups(stats, (16, 32))
    note(0.002, 100, True)
    note(0.05, 64, False)
    assert stats.data == {"lookup_exists": [(0.002, 9, 0, "ok", 0), (0.05, 6, 0, "error", 6)]}


# ---- the tiers of a hit ----

HOST, DISK, P2P, ANY = (
    CacheHitSource.HOST, CacheHitSource.DISK, CacheHitSource.P2P, CacheHitSource.EXTERNAL_UNSPECIFIED
)  # fmt: skip


@pytest.mark.parametrize(
    ("pairs", "local", "hit", "tokens", "want"),
    [
        ((), 0, 64, 64, {HOST: 64}),
        (((1, 32), (2, 32)), 0, 64, 64, {HOST: 32, DISK: 32}),
        (((1, 32), (2, 32)), 32, 64, 32, {DISK: 32}),
        (((1, 32), (2, 32)), 16, 64, 32, {HOST: 16, DISK: 16}),
        (((3, 16), (1, 16), (3, 32)), 0, 64, 48, {P2P: 32, HOST: 16}),
        (((9, 64),), 0, 64, 64, {ANY: 64}),
        (((1, 32),), 0, 64, 64, {ANY: 64}),
    ],
)
def test_tiers(pairs, local, hit, tokens, want):
    assert tiers.sources(pairs, local, hit, tokens) == want


@pytest.mark.parametrize(
    ("pairs", "begin", "end", "far"),
    [
        ((), 0, 64, False),
        (((1, 64),), 0, 64, False),
        (((1, 32), (2, 32)), 0, 64, True),
        (((1, 32), (2, 32)), 0, 32, False),
        (((1, 32), (2, 32)), 0, 33, True),
        (((3, 32), (1, 32)), 32, 64, False),
        (((3, 32), (1, 32)), 31, 64, True),
    ],
)
def test_what_is_loaded_from_below_the_memory(pairs, begin, end, far):
    assert tiers.is_far(pairs, begin, end) == far


def test_tiers_on_the_wire():
    payload = struct.pack(">I", 64)
    assert decode_answer(payload, struct.pack(">BIBI", 1, 48, 2, 16)) == Hit(64, (), ((1, 48), (2, 16)))
    for wrong in (b"\1", b"\0" * 6, b"\0" * 5 * 17):
        with pytest.raises(ValueError, match="tiers"):
            decode_answer(payload, wrong)


def test_vllm_counts_hits_by_tier(tmp_path, runtime_dir):
    """Through vLLM's scheduler into its prefix-cache statistics."""
    engine = Engine(write_model(tmp_path), runtime_dir, budget=256)
    stats = engine.scheduler.connector_prefix_cache_stats
    ask = engine.lookup.ask
    split = {"b": ((1, 32), (2, 48))}
    engine.lookup.ask = lambda name, tokens, hashes: Hit(ask(name, tokens, hashes).tokens, (), split.get(name, ()))
    for name in ("a", "b"):
        engine.lookup.hits[name] = 80
        engine.add(name, 100, seed=ord(name))
    engine.scheduler.schedule()
    assert (stats.hits, stats.hits_by_source) == (160, {HOST: 112, DISK: 48})
    engine.scheduler.shutdown()
