"""What must be left of it all once traffic and faults have ended: nothing."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import time

from harness.client import Metrics
from harness.daemons import LOOKUPD, SOCKETS, WORKER
from harness.prompts import Prompts

from .limits import DRAIN_LIMIT_S

# Leases outlive requests whose end a dead lookupd never heard of, by this.
LEASE_TTL_S = 10
_PREFIX = "mooncake_sidecar_"
_EMPTY = {
    LOOKUPD: ("store_open_reads", "store_open_puts", "store_undeclared_clients", "store_leases"),
    WORKER: ("worker_queue_jobs", "worker_running_jobs", "worker_queue_bytes"),
}
# Of a daemon's last words, in any of its lives.
_DEATH = re.compile(r"^(panic: .*|fatal error: .*|WARNING: DATA RACE|.*BUG: .*)$", re.MULTILINE)
# Of an engine that has lost its connector's or its core's footing: a traceback through our files, a thread that ended by one.
_ENGINE = re.compile(
    r"^.*(EngineDeadError|AssertionError|File \"[^\"]*mooncake_sidecar/|Exception in thread|RefCount.*|EngineCore encountered).*$", re.MULTILINE
)


def blocks_held(cell, limit_s: float = DRAIN_LIMIT_S) -> str | None:
    """Waits for an idle engine that holds no block, and empties its cache; says what it holds when that does not come.

    By the pool's own count: it refuses a reset while one block but the null block is in use. The metrics alone are of the
    last step, and know nothing of a request that is on its way to it.
    """
    deadline = time.monotonic() + limit_s
    while True:
        try:
            cell.engine.wait_idle(max(0.0, deadline - time.monotonic()))
        except AssertionError as error:
            return str(error)
        if json.loads(cell.client.call("POST", "/reset_prefix_cache"))["success"]:
            return None
        if time.monotonic() > deadline:
            return "the idle engine's pool refuses a reset: it holds blocks\n" + cell.engine.log_tail(5)
        time.sleep(0.1)


def in_daemons(cell, limit_s: float = 60.0 + 3.0 * LEASE_TTL_S) -> list[str]:
    """Waits until daemons hold nothing on behalf of requests; returns what they still hold."""
    deadline = time.monotonic() + limit_s
    while True:
        held = []
        for name, gauges in _EMPTY.items():
            try:
                metrics = daemon_metrics(cell, name)
            except (OSError, http.client.HTTPException) as error:
                held.append(f"{name} does not answer: {type(error).__name__}: {error}")
                continue
            for gauge in gauges:
                if not metrics.has(_PREFIX + gauge):
                    held.append(f"{name}: no {gauge}")
                elif value := metrics.value(_PREFIX + gauge):
                    held.append(f"{name}: {gauge} is {value:g}")
        if not held or time.monotonic() > deadline:
            return held
        time.sleep(0.3)


def serves(cell, block: int, limit_s: float = 120.0) -> bool:
    """Waits until the cache works from end to end: a new prompt is stored, and comes back whole."""
    cut = Prompts(cell.model, seed=0)
    deadline = time.monotonic() + limit_s
    while True:
        prompt = cut.fresh(4 * block + 1)
        cell.client.complete(prompt, 1)
        cell.forget()
        if cell.loaded(prompt, 1)[1] == 4 * block:
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)


def in_logs(cell) -> list[str]:
    """What logs have that they never may."""
    found = []
    for log in sorted(cell.directory.glob("mooncake-*.log")):
        found += [f"{log.name}: {m[0][:300]}" for m in _DEATH.finditer(log.read_text(errors="replace"))]
    found += [f"engine: {m[0][:300]}" for m in _ENGINE.finditer(cell.engine.log())]
    return found[:10]


def left_in_shared_memory(seen: set[str]) -> list[str]:
    """Named files of processes that are gone."""
    return [f"{path} is still there" for path in sorted(seen) if os.path.exists(path)]


def daemon_metrics(cell, name: str, limit_s: float = 10.0) -> Metrics:
    connection = http.client.HTTPConnection("localhost", timeout=limit_s)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(limit_s)
    try:
        connection.sock.connect(str(cell.directory / f"admin-{SOCKETS[name]}"))
        connection.request("GET", "/metrics")
        return Metrics(connection.getresponse().read().decode())
    finally:
        connection.close()
