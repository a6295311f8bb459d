"""LMCache in its multi-process mode, started the way its documentation says, on the transfer path that is fastest on a CPU.

Its default there is the engine-driven path, which carries the bytes pickled. The path that is driven by the server maps the
engine's memory instead, and is several times faster; it is opted into by the engine's environment.
"""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import time
import urllib.request

from harness.engine import Port

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent.parent
OVERLAY = ROOT / "build" / "peers" / "lmcache"
PYTHON = OVERLAY / "bin" / "python"


class Server:
    """One `lmcache server`. A context manager."""

    def __init__(self, directory: pathlib.Path, store_bytes: int):
        if not PYTHON.exists():
            raise RuntimeError("LMCache is not installed: run `make setup-bench`, or leave lmcache out of --with")
        self._reserved = [Port(), Port()]
        self.port, self.http_port = (port.number for port in self._reserved)
        self.log_path = directory / "lmcache.log"
        directory.mkdir(parents=True, exist_ok=True)
        command = [str(OVERLAY / "bin" / "lmcache"), "server", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--http-host", "127.0.0.1", "--http-port", str(self.http_port)]
        command += ["--l1-size-gb", f"{store_bytes / (1 << 30):.3f}", "--eviction-policy", "LRU"]
        command += ["--supported-transfer-mode", "lmcache_driven"]
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                command,
                env=dict(os.environ) | self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def environment(self) -> dict[str, str]:
        """For the server and the engine alike."""
        return {
            "LMCACHE_MP_TRANSFER_MODE": "lmcache_driven",
            "LMCACHE_TRACK_USAGE": "false",
            "LMCACHE_DISABLE_BANNER": "1",
            "LMCACHE_LOG_LEVEL": "WARNING",
        }

    @property
    def connector(self) -> dict:
        return {
            "kv_connector": "LMCacheMPConnector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": self.port},
        }

    def __enter__(self) -> "Server":
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait(10)
        for port in self._reserved:
            port.close()

    def _wait(self, limit_s: float = 120) -> None:
        """Until it answers: an engine that finds no server hangs at its start."""
        deadline = time.monotonic() + limit_s
        while True:
            if self.process.poll() is not None:
                raise RuntimeError(f"lmcache server ended with {self.process.returncode}:\n{self._log_tail()}")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/healthcheck", timeout=2) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                pass
            if time.monotonic() > deadline:
                raise RuntimeError(f"lmcache server does not answer after {limit_s:.0f} s:\n{self._log_tail()}")
            time.sleep(0.2)

    def _log_tail(self) -> str:
        return self.log_path.read_text(errors="replace")[-2000:]


def session_members(session: int) -> list[int]:
    """Process ids of a process session."""
    found = []
    for entry in os.scandir("/proc"):
        try:
            if entry.name.isdigit() and os.getsid(int(entry.name)) == session:
                found.append(int(entry.name))
        except ProcessLookupError:
            pass
    return found


def remove_memory(members: list[int]) -> None:
    """Removes the shared memory to which LMCache moved the KV cache of these workers: it outlives a kill."""
    for pid in members:
        for path in pathlib.Path("/dev/shm").glob(f"lmcache_kv_{pid}_*"):
            path.unlink(missing_ok=True)
