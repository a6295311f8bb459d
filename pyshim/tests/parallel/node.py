"""One node: its daemons, which all engines on it share."""

import os
import sys
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

from mooncake_sidecar import paths

from .engine import Engine
from .layouts import Layout, configure
from .ranks import PATIENCE_S, Rank

REPOSITORY = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(REPOSITORY / "tests"))

from harness.daemons import Daemons  # noqa: E402


class Node:
    """Closes what it starts: engines, then daemons."""

    def __init__(self):
        self._root = tempfile.TemporaryDirectory(prefix="ms-")  # short: socket paths are limited to 107 bytes
        self.directory = Path(self._root.name)
        self.models = self.directory / "models"
        self.models.mkdir()
        self._engines: list[tuple[Engine, list[Rank]]] = []
        paths.check_runtime_dir(str(self.directory))
        self._environment = patch.dict(os.environ, VLLM_RPC_BASE_PATH=str(self.directory))
        self._environment.start()

    def start(self, layout: Layout, name: str, budget: int = 64, data_parallel: int = 1, index: int = 0, **extra):
        """An engine of this layout. Returns (engine, ranks).

        Args:
            name: the engine's id.
            data_parallel: engines of one front end, of which this is number ``index``.
            extra: keys of kv_connector_extra_config.
        """
        settings = {
            "runtime_dir": str(self.directory),
            "binaries_dir": os.environ.get("MOONCAKE_SIDECAR_BIN") or str(REPOSITORY / "bin"),
            "store_bytes": "256MiB",
            "lookup_timeout_ms": 10_000,
            "cache_prefix": layout.name,
        }
        if layout.store_tp:
            settings["store_tp_size"] = layout.store_tp
        configured = configure(
            layout,
            self.models,
            budget,
            {
                "kv_connector": "MooncakeSidecarConnector",
                "kv_connector_module_path": "mooncake_sidecar.connector",
                "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute",
                "engine_id": name,
                "kv_connector_extra_config": settings | extra,
            },
            data_parallel,
        )
        configured.config.parallel_config.data_parallel_index = index
        ranks = [
            # Data-parallel engines have devices of their own on a node.
            Rank(layout, place, number, configured.config, kv, index * len(layout.ranks) + number)
            for number, (place, kv) in enumerate(zip(layout.ranks, configured.ranks, strict=True))
        ]
        engine = Engine(layout, configured, ranks)
        self._engines.append((engine, ranks))
        deadline = time.monotonic() + PATIENCE_S
        while not engine.connector._lookup.up:  # an engine of vLLM's begins without, when it takes long
            assert time.monotonic() < deadline, "no lookupd"
            time.sleep(0.01)
        return engine, ranks

    def stop(self, engine):
        """End an engine; the daemons stay."""
        (ended,) = [pair for pair in self._engines if pair[0] is engine]
        self._engines.remove(ended)
        engine.shutdown()
        for rank in ended[1]:
            rank.close()

    def close(self):
        for engine, _ in list(self._engines):
            self.stop(engine)
        Daemons(self.directory).close()
        self._environment.stop()
        self._root.cleanup()
