"""Both connectors with a stopwatch around each hook that the engine calls.

Named by kv_connector_module_path, so that a real engine runs them. Each process writes what it measured to a file of its own
in the directory that MOONCAKE_SIDECAR_HOOK_TIMES names, at most twice a second and outside of what is measured.
"""

import functools
import json
import os
import pathlib
import time

from mooncake_sidecar.connector import MooncakeSidecarConnector
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.connector import MooncakeStoreConnector

SCHEDULER_HOOKS = (
    "on_new_request",
    "get_num_new_matched_tokens",
    "get_loaded_kv_cache_group_ids",
    "update_state_after_alloc",
    "get_external_cache_hit_sources",
    "has_pending_block_frees",
    "build_connector_meta",
    "update_connector_output",
    "request_finished",
    "request_finished_all_groups",
    "take_events",
    "has_pending_push_work",
)
WORKER_HOOKS = (
    "handle_preemptions",
    "bind_connector_metadata",
    "start_load_kv",
    "wait_for_layer_load",
    "save_kv_layer",
    "wait_for_save",
    "get_finished",
    "get_transfer_results",
    "get_block_ids_with_load_errors",
    "get_kv_connector_kv_cache_events",
    "build_connector_worker_meta",
    "clear_connector_metadata",
)


class Stopwatch:
    """Sums wall time by hook. Hooks that call hooks are counted once: by the outermost."""

    def __init__(self, role: str):
        self.role, self.hooks = role, {}
        self.steps = self.forward_steps = 0
        self._depth, self._written = 0, 0.0
        directory = pathlib.Path(os.environ["MOONCAKE_SIDECAR_HOOK_TIMES"])
        self._path = directory / f"{role}-{os.getpid()}.json"

    def wrap(self, name, method):
        entry = self.hooks.setdefault(name, [0, 0])

        @functools.wraps(method)
        def timed(*args, **kwargs):
            self._depth += 1
            begin = time.perf_counter_ns()
            try:
                return method(*args, **kwargs)
            finally:
                spent = time.perf_counter_ns() - begin
                self._depth -= 1
                if self._depth == 0:
                    entry[0] += 1
                    entry[1] += spent
                    self._after(name, args)

        return timed

    def _after(self, name, args) -> None:
        if name == "build_connector_meta":
            self.steps += 1
            self.forward_steps += args[0].total_num_scheduled_tokens > 0
        now = time.monotonic()
        if now - self._written > 0.5:
            self._written = now
            state = {"role": self.role, "steps": self.steps, "forward_steps": self.forward_steps, "hooks": self.hooks}
            part = self._path.with_suffix(".part")
            part.write_text(json.dumps(state))
            part.rename(self._path)


class _Timed:
    """Wraps the hooks of an instance, in whichever role the engine made it."""

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        scheduler = role.name == "SCHEDULER"
        stopwatch = Stopwatch(role.name.lower())
        for name in SCHEDULER_HOOKS if scheduler else WORKER_HOOKS:
            if method := getattr(self, name, None):
                setattr(self, name, stopwatch.wrap(name, method))


class TimedOurs(_Timed, MooncakeSidecarConnector):
    """Our connector, timed."""


class TimedInTree(_Timed, MooncakeStoreConnector):
    """The in-tree connector, timed."""
