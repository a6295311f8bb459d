"""vLLM's second model runner: its real connector bracket around ours, between vLLM's real scheduler and a fake daemon.

Only the runner itself is made up, since it needs a GPU: it calls ``pre_forward``, writes KV, calls ``finish_forward``
and ``post_forward`` as ``v1/worker/gpu/model_runner.py`` does. `Recorder` notes the order in which the hooks come.
"""

import time
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")

import torch
from engine import BLOCK, Engine, kv_config, write_model
from sent import stores
from vllm.distributed import parallel_state
from vllm.distributed.kv_transfer import kv_transfer_state
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.v1.outputs import ModelRunnerOutput

runner = pytest.importorskip("vllm.v1.worker.gpu.kv_connector")

from mooncake_sidecar.connector import MooncakeSidecarConnector  # noqa: E402

BLOCKS, LAYERS, PATIENCE_S = 60, 2, 60
# Every hook that the bracket may call, in the order of a step with an asynchronous load.
STEP = [
    "handle_preemptions",
    "bind_connector_metadata",
    "finish_forward",
    "start_load_kv",
    "wait_for_save",
    "get_transfer_results",
    "get_block_ids_with_load_errors",
    "get_kv_connector_stats",
    "get_kv_connector_kv_cache_events",
    "build_connector_worker_meta",
    "clear_connector_metadata",
]


class Recorder:
    """Notes the hooks that are called on a connector, and with what keywords."""

    def __init__(self, connector):
        self._connector = connector
        self.calls, self.keywords = [], []

    def __getattr__(self, name):
        value = getattr(self._connector, name)
        if not callable(value) or name.startswith("_"):
            return value

        def call(*args, **kwargs):
            self.calls.append(name)
            if name == "start_load_kv":
                self.keywords.append(set(kwargs))
            return value(*args, **kwargs)

        return call


class Worker:
    """A rank of the second runner, its KV cache in memory that the connector provides."""

    def __init__(self, engine):
        config = kv_config(BLOCKS)
        connector = MooncakeSidecarConnector(engine.config, KVConnectorRole.WORKER, config)
        (tensor,) = config.kv_cache_tensors
        with connector.get_mem_pool_context():
            self.memory = torch.zeros(tensor.size, dtype=torch.int8)
        words = tensor.block_stride // 4
        self.views = {
            layer: self.memory.view(torch.float32).as_strided(
                (BLOCKS, 1, BLOCK, words // BLOCK),
                (words, words, words // BLOCK, 1),
                index * tensor.layer_stride // 4,
            )
            for index, layer in enumerate(tensor.layers)
        }
        self.recorder = Recorder(connector)
        kv_transfer_state._KV_CONNECTOR_AGENT = self.recorder
        self.bracket = runner.ActiveKVConnector(engine.config, self.views)
        self.connector, self.engine = connector, engine

    def close(self):
        kv_transfer_state._KV_CONNECTOR_AGENT = None
        self.connector.shutdown()

    def execute(self, output):
        """What the runner does in a step; returns its output."""
        if not output.num_scheduled_tokens:
            return self.bracket.no_forward(output)
        names = list(output.num_scheduled_tokens)
        batch = SimpleNamespace(idx_mapping=torch.arange(len(names)), req_ids=names, num_tokens=len(names))
        self.bracket.pre_forward(output, batch, attn_metadata={})
        sampled = [self._compute(output, name) for name in names]
        self.bracket.finish_forward()
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=sampled,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
            kv_connector_output=self.bracket.post_forward(output.finished_req_ids),
        )

    def _compute(self, output, name):
        """Writes what depends on each token and its position; a token is sampled at the end of the known ones."""
        request = self.engine.scheduler.requests[name]
        end = request.num_computed_tokens  # already moved on by the scheduler
        (table,) = self.engine.scheduler.kv_cache_manager.get_block_ids(name)
        for position in range(end - output.num_scheduled_tokens[name], end):
            for layer, view in enumerate(self.views.values()):
                view[table[position // BLOCK], 0, position % BLOCK] = self.value(request, position, layer)
        return [7] if end >= request.num_tokens else []

    @staticmethod
    def value(request, position, layer):
        return 1 + position * 100 + request.all_token_ids[position] + layer / 2

    def holds(self, name, tokens):
        """Whether the first tokens of a request have the KV that computing them gives."""
        request = self.engine.scheduler.requests[name]
        (table,) = self.engine.scheduler.kv_cache_manager.get_block_ids(name)
        return all(
            (view[table[p // BLOCK], 0, p % BLOCK] == self.value(request, p, layer)).all()
            for p in range(tokens)
            for layer, view in enumerate(self.views.values())
        )


class Stand:
    """Scheduler, connector, bracket and runner together."""

    def __init__(self, path, runtime_dir, **config):
        self.engine = Engine(path, runtime_dir, num_blocks=BLOCKS, **config)
        self.scheduler = self.engine.scheduler
        self.scheduler.use_v2_model_runner = True
        self.worker = Worker(self.engine)
        self.outputs = []
        self.prefills = {}
        """Request -> length of its current prefill."""

    def close(self):
        self.worker.close()
        self.engine.connector.shutdown()

    def step(self):
        output = self.scheduler.schedule()
        self.outputs.append(output)
        for new in output.scheduled_new_reqs:
            self.prefills[new.req_id] = len(new.prefill_token_ids)  # a list that grows with the request
        self.worker.recorder.calls.clear()
        outcome = self.worker.execute(output)
        self.calls = list(self.worker.recorder.calls)
        self.scheduler.update_from_output(output, outcome)
        return output

    def until(self, holds, what):
        """Steps, with a moment between them for the daemon as vLLM's loop leaves one, until the condition holds."""
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline, f"never came: {what}"
            if not self.step().num_scheduled_tokens:
                time.sleep(0.001)

    def drain(self):
        self.until(lambda: not self.scheduler.has_requests(), "rest")


@pytest.fixture
def make(tmp_path, runtime_dir, start_daemon, monkeypatch):
    group = SimpleNamespace(rank=0, local_rank=0, rank_in_group=0)
    monkeypatch.setattr(parallel_state, "get_tensor_model_parallel_rank", lambda: 0)
    monkeypatch.setattr(parallel_state, "get_pp_group", lambda: group)
    monkeypatch.setattr(parallel_state, "get_world_group", lambda: group)
    made = []

    def stand(**config):
        daemon = start_daemon()
        made.append(Stand(write_model(tmp_path), runtime_dir, **config))
        made[-1].daemon = daemon
        return made[-1]

    yield stand
    for one in made:
        one.close()


def test_order_of_the_hooks(make):
    stand = make(budget=256)
    assert stand.worker.recorder.calls == ["register_kv_caches", "set_host_xfer_buffer_ops"]
    stand.engine.add("a", 100)
    stand.step()
    assert stand.calls == STEP
    # Keywords that the second runner adds, also to a step without a forward pass, where there are none.
    assert stand.worker.recorder.keywords == [
        {"scheduler_output", "request_state_indices", "request_ids", "num_tokens", "attn_metadata"}
    ]
    stand.drain()
    stand.step()
    assert stand.calls == STEP and stand.worker.recorder.keywords[-1] == set()


def test_what_is_stored_comes_back(make):
    stand = make(budget=256)
    stand.engine.add("a", 100, max_tokens=1)
    stand.drain()
    assert stand.daemon.stats()["chunks"] == 6 and stand.engine.used() == 0
    stand.worker.memory.zero_()
    stand.scheduler.reset_prefix_cache()
    stand.engine.lookup.hits["b"] = 96
    stand.engine.add("b", 100, max_tokens=3)
    stand.until(lambda: stand.scheduler.requests["b"].num_output_tokens, "the loaded request's first token")
    assert stand.worker.holds("b", 100)
    assert sum(o.num_scheduled_tokens.get("b", 0) for o in stand.outputs if "b" in o.num_scheduled_tokens) <= 4 + 3
    stand.drain()
    assert stand.engine.used() == 0


def test_loads_before_the_forward_pass_of_another_connector(make):
    """``has_sync_kv_loads`` may be true for another child's sake; ours start then, once."""
    stand = make(budget=256)
    stand.engine.add("a", 100)
    output = stand.scheduler.schedule()
    output.has_sync_kv_loads = True
    stand.worker.recorder.calls.clear()
    stand.worker.execute(output)
    sync = [name for name in STEP if name not in ("start_load_kv", "finish_forward")]
    assert stand.worker.recorder.calls == [*sync[:2], "start_load_kv", "finish_forward", *sync[2:]]


def test_dummy_runs_pass_it_by(make):
    stand = make(budget=256)
    bracket = stand.worker.bracket
    bracket.set_disabled(True)
    assert not kv_transfer_state.has_kv_transfer_group()
    stand.engine.add("a", 100)
    output = stand.scheduler.schedule()
    stand.worker.recorder.calls.clear()
    bracket.pre_forward(output)
    bracket.finish_forward()
    assert bracket.post_forward(set()) is None and stand.worker.recorder.calls == []
    bracket.set_disabled(False)
    bracket.reset_capture_state()
    assert stand.worker.recorder.calls == ["reset_capture_state"]
    outcome = stand.worker.execute(output)
    stand.scheduler.update_from_output(output, outcome)
    stand.drain()
    assert stand.daemon.stats()["chunks"] == 6


def test_resumed_requests_come_as_new_ones(make):
    """The whole of them is prefill then: what they had generated is saved with it."""
    stand = make(budget=128, seqs=4)
    for n in range(4):
        stand.engine.add(f"r{n}", 200, max_tokens=60, seed=n)
    saved = {}

    def look():
        output = stand.outputs[-1]
        assert not output.scheduled_cached_reqs.resumed_req_ids
        for part in stores(output.kv_connector_metadata.commands.stores):
            assert part.prefill_end == stand.prefills[part.request]
            saved[part.request] = max(part.token_len, saved.get(part.request, 0))
        return not stand.scheduler.has_requests()

    stand.step()
    stand.until(look, "rest")
    assert any(tokens >= 200 // BLOCK * BLOCK + BLOCK for tokens in stand.prefills.values()), "none generated a block"
    assert saved == {name: tokens // BLOCK * BLOCK for name, tokens in stand.prefills.items()}
    resumed = {name for name, tokens in stand.prefills.items() if tokens > 200}
    assert set(stand.daemon.stats()["preempted"]) >= resumed
    assert stand.engine.used() == 0
