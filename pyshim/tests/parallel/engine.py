"""vLLM's real scheduler over ranks whose forward pass is made up."""

import os
from collections import deque
from unittest.mock import patch

from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from .cache import token_words

NEW_TOKENS = 3


class Engine:
    """Steps requests to their end, and notes what the scheduler decides in ``facts``."""

    def __init__(self, layout, configured, ranks):
        """Args:
        ranks: of each rank what does its part of a step, see ``work``; none for an engine that only schedules.
        """
        self.layout, self.configured, self._ranks = layout, configured, ranks
        with patch.dict(os.environ):
            os.environ.pop("PYTHONHASHSEED", None)  # it would be in every hash, and the hashes are recorded
            init_none_hash(sha256)
        block, unit = configured.block_sizes
        self.scheduler = Scheduler(
            vllm_config=configured.config,
            kv_cache_config=configured.scheduler,
            structured_output_manager=StructuredOutputManager(configured.config),
            block_size=block,
            hash_block_size=unit,
            log_stats=False,
        )
        self._hasher = get_request_block_hasher(unit, sha256)
        self._aggregator = KVOutputAggregator(max(len(ranks), 1))
        self._in_flight = deque()
        self._local: dict[str, int] = {}
        self._begun: dict[str, tuple] = {}
        self._words: dict[str, object] = {}
        self.requests: dict[str, Request] = {}
        self.loaded: dict[str, int] = {}
        """Request -> tokens that the connector brought."""
        self.facts: list[dict] = []
        self._tap()

    @property
    def block(self) -> int:
        """Tokens of a scheduler block."""
        return self.configured.block_sizes[0]

    @property
    def connector(self):
        return self.scheduler.connector

    def add(self, name, tokens):
        sampling = SamplingParams(max_tokens=NEW_TOKENS, ignore_eos=True)
        sampling.update_from_generation_config({}, 1)
        request = Request(name, list(tokens), sampling, None, block_hasher=self._hasher)
        self.requests[name] = request
        self._words[name] = token_words([*tokens, *(self.token(i) for i in range(NEW_TOKENS))])
        self.scheduler.add_request(request)
        self.facts.append({"add": name, "tokens": len(tokens), "hashes": [h.hex() for h in request.block_hashes]})

    def run(self, limit=200):
        """Until nothing is left to do."""
        while self.scheduler.has_requests():
            self.step()
            limit -= 1
            assert limit, "the engine does not come to rest"
        while self._in_flight:
            self._finish(*self._in_flight.popleft())

    def step(self):
        """Schedule a step. With pipeline stages, others may be under way before its outcome is known."""
        output = self.scheduler.schedule()
        computed = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        cached = output.scheduled_cached_reqs
        computed |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        manager = self.scheduler.kv_cache_manager
        work = {
            name: (computed[name], computed[name] + count, [list(t) for t in manager.get_block_ids(name)])
            for name, count in output.num_scheduled_tokens.items()
        }
        loads, self._begun = self._begun, {}
        self._note(output, work, loads)
        samples = [name for name in work if not self.scheduler.requests[name].is_prefill_chunk]
        reports = [rank.work(output, work, loads, self._words) for rank in self._ranks]
        self._in_flight.append((output, samples, reports))
        if len(self._in_flight) >= self.layout.pp or not work:
            self._finish(*self._in_flight.popleft())

    def _tap(self):
        """See what the scheduler asks of the connector, and what it makes of the answer."""
        match, allocated = self.connector.get_num_new_matched_tokens, self.connector.update_state_after_alloc

        def ask(request, local):
            answer = match(request, local)
            self._local[request.request_id] = local
            return answer

        def note(request, blocks, external):
            allocated(request, blocks, external)
            if external:
                name, local = request.request_id, self._local[request.request_id]
                self.loaded[name] = external
                self._begun[name] = (local, local + external, [list(t) for t in blocks.get_block_ids()])

        self.connector.get_num_new_matched_tokens, self.connector.update_state_after_alloc = ask, note

    @staticmethod
    def token(index):
        """What the model says, whatever it is asked."""
        return 900 + index

    def _note(self, output, work, loads):
        fact = {}
        if loads:
            fact["loads"] = {name: {"tokens": [f, e], "blocks": tables} for name, (f, e, tables) in sorted(loads.items())}
        if work:
            fact["computes"] = {name: {"tokens": [f, e], "blocks": tables} for name, (f, e, tables) in sorted(work.items())}
        if output.finished_req_ids:
            fact["finished"] = sorted(output.finished_req_ids)
        if fact:
            self.facts.append(fact)

    def _finish(self, output, samples, reports):
        names = list(output.num_scheduled_tokens)
        tokens = [[self.token(self.requests[name].num_output_tokens)] if name in samples else [] for name in names]

        def outcome(report):
            return ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: i for i, name in enumerate(names)},
                sampled_token_ids=tokens,
                logprobs=None,
                prompt_logprobs_dict={},
                pooler_output=[],
                kv_connector_output=report,
            )

        if reports:
            result = self._aggregator.aggregate([outcome(report) for report in reports])
        else:
            result = outcome(self._reports(output))
        self.scheduler.update_from_output(output, result)

    def _reports(self, output):
        """Without ranks, loads end with the step that begins them."""
        return KVConnectorOutput(finished_recving=set(getattr(output.kv_connector_metadata, "loads", ())) or None)

    def forget(self):
        """The engine's own cache is lost."""
        assert self.scheduler.reset_prefix_cache()
        for rank in self._ranks:
            rank.cache.wipe()

    def used(self):
        """Blocks that someone holds (the null block aside)."""
        blocks = self.scheduler.kv_cache_manager.block_pool.blocks
        return sum(1 for block in blocks if block.ref_cnt and not block.is_null)

    def shutdown(self):
        self.scheduler.shutdown()
