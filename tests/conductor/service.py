"""mooncake-conductor as a process, and its HTTP API."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import time
from typing import Any, Callable, Sequence

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent.parent
CONDUCTOR = os.environ.get("MOONCAKE_SIDECAR_CONDUCTOR", REPOSITORY / "bin" / "mooncake-conductor")

# A generous bound on everything that is waited for: what exceeds it does not happen at all.
PATIENCE_S = 60.0


def until(so: Callable[[], Any], what: Callable[[], str], limit_s: float = PATIENCE_S) -> Any:
    """Waits until something is so, and returns it; `what` says what is instead."""
    deadline = time.monotonic() + limit_s
    while not (found := so()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not so after {limit_s:.0f} s: {what()}")
        time.sleep(0.01)
    return found


def free_port(count: int = 1) -> int:
    """The first of so many ports in a row that nobody listens at now."""
    while True:
        with contextlib.ExitStack() as probes:
            first = probes.enter_context(_bound(0)).getsockname()[1]
            with contextlib.suppress(OSError, OverflowError):
                for port in range(first + 1, first + count):
                    probes.enter_context(_bound(port))
                return first


def _bound(port: int) -> socket.socket:
    probe = socket.socket()
    try:
        probe.bind(("", port))
    except BaseException:
        probe.close()
        raise
    return probe


class Refused(RuntimeError):
    def __init__(self, status: int, text: str):
        super().__init__(f"HTTP {status}: {text[:500]}")
        self.status = status


class Conductor:
    """Starts the program in an empty directory. `configuration` is what conductor_config.json says besides the port."""

    def __init__(self, directory: pathlib.Path, arguments: Sequence[str] = (), configuration: dict | None = None, environment: dict | None = None):
        self.directory, self.port = directory, free_port()
        self._arguments, self._environment = [*arguments, "--listen", f"127.0.0.1:{self.port}"], environment or {}
        self._config = directory / "conductor_config.json"
        self._config.write_text(json.dumps({"http_server_port": self.port, "kvevent_instance": {}} | (configuration or {})))
        self._connection: http.client.HTTPConnection | None = None
        self.process: subprocess.Popen | None = None

    def start(self) -> Conductor:
        with open(self.directory / "conductor.log", "ab") as log:
            self.process = subprocess.Popen(
                [str(CONDUCTOR), *self._arguments],
                env=os.environ | {"CONDUCTOR_CONFIG_PATH": str(self._config)} | self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        until(self._answers, self.log)
        return self

    def _answers(self) -> bool:
        if self.process.poll() is not None:
            raise AssertionError(f"it has ended with {self.process.returncode}: {self.log()}")
        try:
            self.get("/services")
        except OSError:
            return False
        return True

    def log(self) -> str:
        return (self.directory / "conductor.log").read_text()[-3000:]

    def stop(self, how: int = signal.SIGTERM) -> int:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self.process.send_signal(how)
        return self.process.wait(PATIENCE_S)

    def __enter__(self) -> Conductor:
        return self.start()

    def __exit__(self, *_) -> None:
        if self.process is not None and self.process.poll() is None:
            self.stop(signal.SIGKILL)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """One connection for all calls."""
        if self._connection is None:
            self._connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            self._connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
            response = self._connection.getresponse()
            text = response.read().decode()
        except OSError:
            self._connection.close()
            self._connection = None
            raise
        if response.status != 200:
            raise Refused(response.status, text)
        return json.loads(text)

    def get(self, path: str) -> Any:
        return self.call("GET", path)

    def post(self, path: str, **fields) -> Any:
        return self.call("POST", path, fields)

    def services(self) -> dict[tuple[str, int], dict]:
        return {(s["InstanceID"], s["DPRank"]): s for s in self.get("/services")["services"]}

    def query_many(self, queries: Sequence[dict]) -> list[dict]:
        """The answers' rows of the default tenant, by instance."""
        rows = []
        for begin in range(0, len(queries), 1000):
            for result in self.post("/query_batch", queries=queries[begin : begin + 1000])["results"]:
                assert "error" not in result, result
                rows.append(result.get("default", {}))
        return rows

    def query(self, **fields) -> dict:
        return self.post("/query", **fields).get("default", {})
