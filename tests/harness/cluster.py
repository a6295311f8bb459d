"""A Mooncake Store cluster on loopback: a real master and storage nodes of the wheel, and what can befall them."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import Callable, Iterator

from .client import PATIENCE_S, Metrics
from .engine import Port

PROGRAMS = pathlib.Path(sys.executable).parent
# Everything that can be told to stay on loopback is; Mooncake 0.3.13 listens for transfers on all addresses nevertheless.
LOOPBACK = {"MC_TCP_BIND_ADDRESS": "127.0.0.1", "MOONCAKE_REQUESTER_LOCAL_HOSTNAME": "127.0.0.1", "MC_LOG_LEVEL": "ERROR"}


class Program:
    """One process that can be killed, stopped and started anew with the same arguments, and so on the same ports."""

    def __init__(self, name: str, command: list[str], directory: pathlib.Path):
        self.name, self.command = name, command
        self.log_path = directory / f"{name}.log"
        self.process: subprocess.Popen | None = None

    @property
    def pid(self) -> int:
        return self.process.pid

    def start(self) -> None:
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                self.command, env=os.environ | LOOPBACK, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """SIGKILL; returns once the process is gone."""
        if self.running():
            self.process.kill()
        if self.process is not None:
            self.process.wait(PATIENCE_S)

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """SIGSTOP within, SIGCONT after; a process that was killed meanwhile is let be."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def tail(self, lines: int = 15) -> str:
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])


class Cluster:
    """Master and storage nodes. Clients lend no memory, so that what is stored outlives each of them.

    Starts on construction, serves when it returns, ends with the context.

    Args:
        directory: gets logs and the configuration file.
        segment_bytes: what each node lends.
        lease_ms: how long an object that was asked for is neither evicted nor removed.
        silence_s: for how long a node may be silent before the master forgets what it has.
    """

    def __init__(self, directory: pathlib.Path, nodes: int = 3, *, segment_bytes: int = 1 << 30, lease_ms: int = 10_000, silence_s: int = 10):
        directory.mkdir(parents=True, exist_ok=True)
        self._reserved = [Port() for _ in range(2 + nodes)]
        rpc, metrics, *services = (port.number for port in self._reserved)
        self.segment_bytes, self.metrics_port = segment_bytes, metrics
        address = f"127.0.0.1:{rpc}"
        master = [str(PROGRAMS / "mooncake_master"), "--rpc_address=127.0.0.1", f"--rpc_port={rpc}"]
        master += ["--metrics_host=127.0.0.1", f"--metrics_port={metrics}", "--enable_metric_reporting=false"]
        master += [f"--default_kv_lease_ttl={lease_ms}", f"--client_ttl={silence_s}"]
        self.master = Program("mooncake_master", master, directory)
        node = [str(PROGRAMS / "mooncake_client"), "--host=127.0.0.1", f"--master_server_address={address}"]
        node += ["--metadata_server=P2PHANDSHAKE", "--protocol=tcp", f"--global_segment_size={segment_bytes}"]
        self.nodes = [Program(f"node-{k}", [*node, f"--port={port}"], directory) for k, port in enumerate(services, 1)]
        self.config_path = directory / "mooncake.json"
        self.config_path.write_text(
            json.dumps(
                {
                    "mode": "standalone-store",
                    "metadata_server": "P2PHANDSHAKE",
                    "master_server_address": address,
                    "protocol": "tcp",
                    "device_name": "",
                    "global_segment_size": 0,
                    "local_buffer_size": 64 << 20,
                }
            )
        )
        try:
            self.master.start()
            self.wait("the master", self._serves)
            for program in self.nodes:
                program.start()
            self.wait("all storage nodes", self.whole)
        except BaseException:
            self.close()
            raise

    @property
    def environment(self) -> dict[str, str]:
        """What engines and daemons need to find this cluster."""
        return LOOPBACK | {"MOONCAKE_CONFIG_PATH": str(self.config_path)}

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for program in (*self.nodes, self.master):
            program.kill()
        for port in self._reserved:
            port.close()

    def metrics(self) -> Metrics:
        """The master's page."""
        connection = http.client.HTTPConnection("127.0.0.1", self.metrics_port, timeout=5)
        try:
            connection.request("GET", "/metrics")
            return Metrics(connection.getresponse().read().decode())
        finally:
            connection.close()

    @property
    def keys(self) -> int:
        return int(self.metrics().value("master_key_count"))

    @property
    def stored_bytes(self) -> int:
        return int(self.metrics().value("master_allocated_bytes"))

    @property
    def read_bytes(self) -> int:
        """Of all objects whose places the master has told to readers since it was started."""
        return int(self.metrics().value("mem_cache_hit_bytes_total"))

    @property
    def capacity_bytes(self) -> int:
        return int(self.metrics().value("master_total_capacity_bytes"))

    def whole(self) -> bool:
        """Whether every node's memory is there."""
        return self.capacity_bytes == len(self.nodes) * self.segment_bytes

    def settled_keys(self, quiet_s: float = 2.0, limit_s: float = 60.0) -> int:
        """The number of keys once nothing was added or removed for a while."""
        deadline = time.monotonic() + limit_s
        seen, since = self.keys, time.monotonic()
        while time.monotonic() - since < quiet_s:
            if time.monotonic() > deadline:
                raise AssertionError(f"the cluster's keys still change after {limit_s:.0f} s: {seen}")
            time.sleep(0.1)
            if (now := self.keys) != seen:
                seen, since = now, time.monotonic()
        return seen

    def wait(self, what: str, true: Callable[[], bool], limit_s: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + limit_s
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if true():
                    return
            if time.monotonic() > deadline:
                logs = "\n".join(f"--- {p.name}\n{p.tail()}" for p in (self.master, *self.nodes) if p.log_path.exists())
                raise AssertionError(f"gave up waiting for {what} after {limit_s:.0f} s\n{logs}")
            time.sleep(0.05)

    def _serves(self) -> bool:
        if not self.master.running():
            raise AssertionError(f"mooncake_master has ended:\n{self.master.tail()}")
        return self.metrics().has("master_key_count")


def available() -> str | None:
    """None when a cluster can be run, else why not."""
    missing = [name for name in ("mooncake_master", "mooncake_client") if not (PROGRAMS / name).exists()]
    return f"no {' and no '.join(missing)} (scripts/setup.sh --with-peers)" if missing else None
