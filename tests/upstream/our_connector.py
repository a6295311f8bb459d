"""Puts our connector where upstream's tests have another, or a mock.

A pytest plugin for tests in upstream's ``tests/v1/kv_connector/unit``. The
scheduler's hooks are those of our real connector, in the scheduler role, without
daemons: what a lookup finds is what the test tells the mock to answer. Loads of
without daemons ours are never synchronous; a test that answers so is skipped, with that reason.
"""

import tempfile
from types import SimpleNamespace
from unittest.mock import Mock, patch

import pytest
import torch
from tests.v1.kv_connector.unit import utils
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor

import mooncake_sidecar.connector as ours
from mooncake_sidecar.lookup import MISS, Hit, LookupCounters

EXTRA = {"autostart": False, "runtime_dir": tempfile.gettempdir()}
schedulers = []
"""Those that the test created, so that a connector can be made to fit the last."""


class Lookup:
    """Finds what ``hits`` says."""

    def __init__(self, *_, **__):
        self.hits = {}
        self.generation = 1
        self.counters = LookupCounters()

    def ask(self, request_id, *_):
        tokens = self.hits.get(request_id, 0)
        return None if tokens is None else Hit(tokens) if tokens else MISS

    def reset(self):
        return True

    def new_step(self):
        pass

    def discard(self, request_id):
        self.hits.pop(request_id, None)

    def release(self, requests):
        pass

    def close(self):
        pass


class Registrar:
    """There is no daemon."""

    def __init__(self, *_, **__):
        self.first_attempt = SimpleNamespace(wait=lambda timeout: True)

    def start(self):
        pass

    def stop(self):
        pass


def with_memory(config: KVCacheConfig) -> KVCacheConfig:
    """The configuration with groups and tensors, which tests of upstream leave out where none looks at them."""
    groups = config.kv_cache_groups
    if not groups:
        spec = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=16, dtype=torch.float16)
        groups = [KVCacheGroupSpec(["layer"], spec)]
    blocks = config.num_blocks or 1
    tensors = [
        KVCacheTensor(size=4096 * blocks, layers=list(g.layer_names), layer_stride=4096 * blocks, block_stride=4096)
        for g in groups
    ]
    return KVCacheConfig(num_blocks=blocks, kv_cache_tensors=tensors, kv_cache_groups=groups)


def _is_remote(request):
    return bool(request.kv_transfer_params and request.kv_transfer_params.get("do_remote_prefill"))


class OurConnector(ours.MooncakeSidecarConnector):
    """Ours, taking the configurations of upstream's tests."""

    def __init__(self, vllm_config, role, kv_cache_config):
        transfer = vllm_config.kv_transfer_config
        theirs, transfer.kv_connector_extra_config = transfer.kv_connector_extra_config, EXTRA
        try:
            with patch.object(ours, "LookupClient", Lookup), patch.object(ours, "Registrar", Registrar):
                super().__init__(vllm_config, role, with_memory(kv_cache_config))
        finally:
            transfer.kv_connector_extra_config = theirs

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        """A prompt computed elsewhere is one that the store has as a whole, until it has been loaded."""
        if _is_remote(request):
            self._lookup.hits[request.request_id] = request.num_tokens
        return super().get_num_new_matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        if _is_remote(request):
            request.kv_transfer_params["do_remote_prefill"] = False
            self._lookup.hits.pop(request.request_id, None)


class Match(Mock):
    """``get_num_new_matched_tokens``: the test says what is stored, our connector answers."""

    def __call__(self, request, local_tokens):
        wanted = super().__call__(request, local_tokens)
        tokens, asynchronous = wanted
        if tokens and not asynchronous:
            pytest.skip("the test loads synchronously; without daemons those of our connector are never synchronous")
        self.lookup.hits[request.request_id] = local_tokens + tokens if tokens else 0
        answer = self.real.get_num_new_matched_tokens(request, local_tokens)
        # After a failed load ours finds nothing; what else it finds is what is stored.
        assert answer in (wanted, (0, False)), f"ours finds {answer}, the test stores {wanted}"
        return answer


def create_mock_connector():
    """Our connector, with the mock's means to set and count."""
    scheduler = schedulers[-1]
    real = OurConnector(scheduler.vllm_config, KVConnectorRole.SCHEDULER, scheduler.kv_cache_config)
    real.bind_kv_cache_manager(scheduler.kv_cache_manager)
    mock = Mock(spec=OurConnector, wraps=real)
    mock.supports_divergent_local_hybrid_hits = real.supports_divergent_local_hybrid_hits
    mock.get_num_new_matched_tokens = Match()
    mock.get_num_new_matched_tokens.real = real
    mock.get_num_new_matched_tokens.lookup = real._lookup

    def finished(request, block_ids):
        mock.request_finished(request, block_ids[0])  # which tests count
        return real.request_finished_all_groups(request, block_ids)

    mock.request_finished_all_groups.side_effect = finished
    return mock


def remember(create):
    def create_scheduler(*arguments, **named):
        schedulers.append(create(*arguments, **named))
        return schedulers[-1]

    return create_scheduler


utils.create_mock_connector = create_mock_connector
utils.create_scheduler = remember(utils.create_scheduler)
utils.ExampleConnector = OurConnector  # inside the recording TestExampleConnector
for _name in ("NixlConnector", "SimpleCPUOffloadConnector", "OffloadingConnector"):
    KVConnectorFactory._registry[_name] = lambda: OurConnector


@pytest.fixture(autouse=True)
def _forget():
    yield
    schedulers.clear()
