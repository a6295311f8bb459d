"""A real mooncake_master, for the in-tree connector to work on."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

from .client import PATIENCE_S
from .engine import Port


class Master:
    """Starts on construction, serves on free loopback ports, ends with the context."""

    def __init__(self, directory: pathlib.Path, segment_bytes: int = 1 << 30):
        directory.mkdir(parents=True, exist_ok=True)
        self.log_path = directory / "mooncake_master.log"
        self._reserved = [Port() for _ in range(3)]
        self.rpc_port, http_port, metrics_port = (port.number for port in self._reserved)
        program = pathlib.Path(sys.executable).parent / "mooncake_master"
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [
                    str(program),
                    f"--rpc_port={self.rpc_port}",
                    "--enable_http_metadata_server=true",
                    f"--http_metadata_server_port={http_port}",
                    f"--metrics_port={metrics_port}",
                    # Else what an engine has stored is forgotten when it says nothing for ten seconds.
                    f"--client_ttl={PATIENCE_S:.0f}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.config_path = directory / "mooncake.json"
        self.config_path.write_text(
            json.dumps(
                {
                    "metadata_server": f"http://127.0.0.1:{http_port}/metadata",
                    "master_server_address": f"127.0.0.1:{self.rpc_port}",
                    "protocol": "tcp",
                    "device_name": "",
                    "global_segment_size": segment_bytes,
                    "local_buffer_size": 256 << 20,
                }
            )
        )
        self._wait((self.rpc_port, http_port))

    @property
    def environment(self) -> dict[str, str]:
        """What an engine needs to find this master."""
        return {"MOONCAKE_CONFIG_PATH": str(self.config_path), "MC_LOG_LEVEL": "ERROR"}

    def __enter__(self) -> "Master":
        return self

    def __exit__(self, *_: object) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait(PATIENCE_S)
        for port in self._reserved:
            port.close()

    def _wait(self, ports: tuple[int, ...], limit_s: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + limit_s
        for port in ports:
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    break
                except OSError:
                    if self.process.poll() is not None or time.monotonic() > deadline:
                        self.__exit__()
                        raise RuntimeError("mooncake_master does not serve:\n" + self.log_path.read_text()[-2000:]) from None
                    time.sleep(0.05)


def available() -> str | None:
    """None when the master can be run, else why not."""
    if not (pathlib.Path(sys.executable).parent / "mooncake_master").exists():
        return "mooncake-transfer-engine-non-cuda is not installed (scripts/setup.sh --with-peers)"
    return None
