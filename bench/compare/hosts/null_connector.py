"""A connector that claims a hit and has it at once: what any connector pays to vLLM for an asynchronous load.

It moves no bytes, so that a request with a claimed hit computes on what lies in its blocks. The hit is claimed for requests
that say so in their kv_transfer_params, {"null_hit": true}; for the others it does nothing.
"""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)


class Claims(KVConnectorMetadata):
    """Requests whose load begins with this step."""

    def __init__(self, requests: set[str]):
        self.requests = requests


class NullConnector(KVConnectorBase_V1, SupportsHMA):
    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any):
        super().__init__(vllm_config, role, kv_cache_config)
        self._block = vllm_config.cache_config.block_size
        self._begun: set[str] = set()

    # Scheduler role.

    @property
    def requires_kv_delivery(self) -> bool:
        return False

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        if not (request.kv_transfer_params or {}).get("null_hit"):
            return 0, False
        # As a store would answer: whole blocks, and the last token is computed.
        hit = (request.num_tokens - 1) // self._block * self._block - num_computed_tokens
        return (hit, True) if hit > 0 else (0, False)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if num_external_tokens:
            self._begun.add(request.request_id)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        claims, self._begun = Claims(self._begun), set()
        return claims

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, None]:
        return False, None

    def request_finished_all_groups(self, request: Any, block_ids: tuple[list[int], ...]) -> tuple[bool, None]:
        return False, None

    # Worker role.

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        pass

    def wait_for_layer_load(self, layer_name: str) -> None:
        pass

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        pass

    def wait_for_save(self) -> None:
        pass

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Reports what this very step was told to load: no connector can be sooner."""
        return None, self._get_connector_metadata().requests or None
