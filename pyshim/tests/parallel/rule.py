"""What the in-tree connector would find, as a connector that moves nothing."""

from in_tree import InTree
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, SupportsHMA
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.data import BlobBlockHashes


def blob(request):
    """A request's hashes as the in-tree connector sends them."""
    hashes = request.block_hashes
    return BlobBlockHashes(memoryview(b"".join(hashes)), len(hashes[0])) if hashes else []


class Rule:
    """The in-tree connector's ranks over one store, which is a set of keys."""

    def __init__(self, layout, configured):
        made = InTree(configured.config, configured.scheduler, layout.heads, configured.block_sizes)
        self._ranks = [made.rank(place, layout.dcp_rank(place)) for place in layout.ranks]
        self._block = configured.block_sizes[0]
        self.keys: set[str] = set()

    def save(self, request, tokens):
        """A prompt has been computed, and of it every rank has saved so many tokens."""
        for rank, length in zip(self._ranks, tokens, strict=True):
            if whole := length // self._block * self._block:
                self.keys |= set(rank.written(whole, blob(request), prompt=request.num_prompt_tokens))

    def find(self, request, num_tokens):
        """Tokens that a lookup finds."""
        return self._ranks[0].found(self.keys, num_tokens, blob(request))


class Loads(KVConnectorMetadata):
    def __init__(self, loads):
        self.loads = loads


class RuleConnector(KVConnectorBase_V1, SupportsHMA):
    """Answers by ``rule``, which is set after the scheduler has made it; loads end with the step that begins them."""

    rule: Rule

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        self._loads: set[str] = set()

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        more = self.rule.find(request, request.num_tokens) - num_computed_tokens
        return max(0, more), more > 0

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        if num_external_tokens:
            self._loads.add(request.request_id)

    def build_connector_meta(self, scheduler_output):
        loads, self._loads = self._loads, set()
        return Loads(loads)

    def request_finished(self, request, block_ids):
        self.rule.save(request, [request.num_prompt_tokens] * len(self.rule._ranks))
        return False, None

    def request_finished_all_groups(self, request, block_ids):
        return self.request_finished(request, block_ids)

    # ---- worker role: not used ----

    def start_load_kv(self, forward_context, **kwargs):
        raise NotImplementedError

    def wait_for_layer_load(self, layer_name):
        raise NotImplementedError

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        raise NotImplementedError

    def wait_for_save(self):
        raise NotImplementedError
