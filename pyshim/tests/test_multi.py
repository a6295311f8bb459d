"""As a child of vLLM's MultiConnector, and with several ranks, inside vLLM's real scheduler."""

from functools import partial
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")

import engine as stand
from engine import Engine, StubLookup, write_model
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import (
    MultiConnector,
    MultiKVConnectorWorkerMetadata,
)
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

import mooncake_sidecar
from mooncake_sidecar.metadata import SidecarWorkerMetadata
from mooncake_sidecar.prom import SidecarPromMetrics
from mooncake_sidecar.stats import SidecarStats


@pytest.fixture
def family(tmp_path, runtime_dir):
    mooncake_sidecar.register()
    child = {
        "kv_connector": "MooncakeSidecarConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"autostart": False, "runtime_dir": runtime_dir},
    }
    config = stand.vllm_config(write_model(tmp_path), 200, runtime_dir, budget=256)
    config.kv_transfer_config = KVTransferConfig(
        kv_connector="MultiConnector",
        kv_role="kv_both",
        kv_load_failure_policy="recompute",
        kv_connector_extra_config={"connectors": [child, child]},
    )
    stand.init_none_hash(stand.sha256)
    scheduler = stand.Scheduler(
        vllm_config=config,
        kv_cache_config=stand.kv_config(200),
        structured_output_manager=stand.StructuredOutputManager(config),
        block_size=stand.BLOCK,
        hash_block_size=stand.BLOCK,
        log_stats=True,
    )
    yield scheduler
    scheduler.shutdown()


def finish(scheduler, output, received=(), reports=(None, None)):
    names = list(output.num_scheduled_tokens)
    ends = [scheduler.requests[n].num_computed_tokens >= scheduler.requests[n].num_tokens for n in names]
    scheduler.update_from_output(
        output,
        ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=[[5] if end else [] for end in ends],
            kv_connector_output=KVConnectorOutput(
                finished_recving=set(received) or None,
                kv_connector_worker_meta=MultiKVConnectorWorkerMetadata(metadata=reports) if any(reports) else None,
            ),
        ),
    )


def test_the_child_that_does_not_load_only_saves(family):
    first, second = family.connector._connectors
    for child in (first, second):
        child._scheduler._lookup = StubLookup()
    first._scheduler._lookup.hits["a"] = 48
    second._scheduler._lookup.hits["a"] = 80
    driver = SimpleNamespace(scheduler=family, hasher=stand.get_request_block_hasher(stand.BLOCK, stand.sha256))
    Engine.add(driver, "a", 100)
    output = family.schedule()
    ours, other = (m.commands for m in output.kv_connector_metadata.metadata)
    assert [c.request for c in ours.loads] == ["a"] and other.loads == []
    finish(family, output, received={"a"})
    pool = family.kv_cache_manager.block_pool
    jobs = []
    for _ in range(20):
        output = family.schedule()
        stores = [m.commands.stores for m in output.kv_connector_metadata.metadata]
        jobs.append([len(s) for s in stores])
        reports = tuple(SidecarWorkerMetadata({c.job: 1 for c in s}) if s else None for s in stores)
        finish(family, output, reports=reports)
        if not family.has_requests():
            break
    assert [1, 1] in jobs
    assert not family.has_requests()
    assert not any(block.ref_cnt for block in pool.blocks if not block.is_null)
    assert not first._scheduler._entries and not second._scheduler._entries


def test_reports_of_all_ranks_are_folded():
    """A job counts as saved when every rank did all of it, a load as over when every rank is through."""
    aggregator = KVOutputAggregator(2)

    def outputs(*reports):
        return [
            ModelRunnerOutput(
                [], {}, kv_connector_output=KVConnectorOutput(finished_recving=r, kv_connector_worker_meta=m)
            )
            for r, m in reports
        ]

    one = aggregator.aggregate(
        outputs(
            ({"a"}, SidecarWorkerMetadata({1: 1, 2: 1}, {"a"}, {0: True}, {1: {0}, 2: {1}})),
            (None, SidecarWorkerMetadata({1: 1}, set(), {1: False}, {1: {3}}, True)),
        )
    ).kv_connector_output
    assert not one.finished_recving
    folded = one.kv_connector_worker_meta
    assert (folded.stores, folded.failed, folded.ready, folded.incomplete, folded.renewed) == (
        {1: 2, 2: 1}, {"a"}, {0: True, 1: False}, {1: {0, 3}, 2: {1}}, True,
    )  # fmt: skip
    two = aggregator.aggregate(outputs((None, None), ({"a"}, SidecarWorkerMetadata({2: 1}))))
    assert two.kv_connector_output.finished_recving == {"a"}
    assert two.kv_connector_output.kv_connector_worker_meta.stores == {2: 1}


def test_stats_are_made_again_by_the_registered_name(family):
    """What a worker sends is plain data; the front end finds our class by name, without a module's path."""
    mine = SidecarStats()
    mine.add("lookups", 3)
    plain = {"MooncakeSidecarConnector": mine.data}
    again = MultiConnector.build_kv_connector_stats(plain)
    assert type(again["MooncakeSidecarConnector"]) is SidecarStats
    total = again.aggregate(MultiConnector.build_kv_connector_stats(plain))
    assert total["MooncakeSidecarConnector"].data["counters"] == {"lookups": 6}


def test_metrics_beside_the_in_tree_connector_in_either_order():
    """Both have series of the same names, and the in-tree connector does not bear to find them."""
    theirs = pytest.importorskip("vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.metrics")
    config = SimpleNamespace(kv_transfer_config=SimpleNamespace())
    data = {"lookup_exists": [(0.002, 3, 0, "ok", 0)]}
    both = [SidecarPromMetrics, theirs.MooncakeStorePromMetrics]
    for classes in (both, both[::-1]):
        registry = CollectorRegistry()
        kinds = {kind: partial(kind, registry=registry) for kind in (Counter, Gauge, Histogram)}
        made = {cls: cls(config, kinds, ["engine"], {0: ["0"]}) for cls in classes}
        made[SidecarPromMetrics].observe(data, 0)
