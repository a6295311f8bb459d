"""deploy/cluster/cluster.sh: three nodes under one supervisor, on loopback, that outlive what befalls them."""

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import time
from urllib.request import urlopen

import pytest
from harness.client import Metrics
from harness.cluster import PROGRAMS
from harness.daemons import LOOKUPD, WORKER, Daemons, wait_gone
from harness.engine import REPOSITORY

SCRIPT = REPOSITORY / "deploy" / "cluster" / "cluster.sh"
SEGMENT = 64 << 20


class Supervised:
    def __init__(self, directory: pathlib.Path):
        self.directory = directory / "set"
        self._held = contextlib.ExitStack()
        self.metrics_port, self.master_port, stores = free_ports(self._held)
        self.process = subprocess.Popen(
            [str(SCRIPT)],
            env=os.environ
            | {
                "CLUSTER_DIR": str(self.directory),
                "CLUSTER_MOONCAKE": str(PROGRAMS),
                "CLUSTER_SIDECAR": str(REPOSITORY / "bin"),
                "CLUSTER_SEGMENT": "64MB",
                "CLUSTER_STORE_BYTES": "64MiB",
                "CLUSTER_MASTER_PORT": str(self.master_port),
                "CLUSTER_METRICS_PORT": str(self.metrics_port),
                "CLUSTER_STORE_PORTS": str(stores),
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def capacity_bytes(self) -> int:
        with urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=5) as page:
            return int(Metrics(page.read().decode()).value("master_total_capacity_bytes"))

    def status(self) -> dict[str, int]:
        """Process ids of what runs, by name."""
        done = subprocess.run(
            [str(PROGRAMS / "supervisorctl"), "-s", f"unix://{self.directory}/supervisor.sock", "status"], capture_output=True, text=True
        )
        words = [line.split() for line in done.stdout.splitlines()]
        return {w[0].partition(":")[2] or w[0]: int(w[3].rstrip(",")) for w in words if len(w) > 3 and w[1] == "RUNNING"}

    def all_programs(self) -> dict[str, int] | None:
        """The same once every program runs."""
        found = self.status()
        return found if set(found) == names() else None

    def until(self, what: str, true, limit_s: float = 120.0):
        deadline = time.monotonic() + limit_s
        while True:
            with contextlib.suppress(OSError):
                if found := true():
                    return found
            assert self.process.poll() is None, "the supervisor has ended: " + self.log()
            assert time.monotonic() < deadline, f"gave up waiting for {what}: {self.status()}\n{self.log()}"
            time.sleep(0.1)

    def log(self) -> str:
        path = self.directory / "supervisord.log"
        return path.read_text() if path.exists() else "it has no log"

    def close(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self._held.close()


def free_ports(held: contextlib.ExitStack) -> tuple[int, int, int]:
    """Two free ports, and a number that makes free ones with a digit from 1 to 3 behind it.

    Held so that the kernel gives them to nobody else; a server that reuses addresses may take them.
    """

    def bound(port: int) -> int:
        holder = held.enter_context(socket.socket())
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", port))
        return holder.getsockname()[1]

    singles = bound(0), bound(0)
    for tens in range(2000, 3000):
        with contextlib.suppress(OSError):
            for digit in (1, 2, 3):
                bound(tens * 10 + digit)
            return *singles, tens
    raise AssertionError("no free ports")


@pytest.fixture()
def running(directory):
    made = Supervised(directory)
    try:
        made.until("all storage nodes", lambda: made.capacity_bytes() == 3 * SEGMENT)
        yield made
    finally:
        made.close()


def names() -> set[str]:
    return {"master", *(f"{what}-{k}" for what in ("store", "lookupd", "worker") for k in (1, 2, 3))}


def test_three_nodes_serve_and_all_end(running, peers):
    pids = running.until("all programs", running.all_programs)
    for k in (1, 2, 3):
        node = Daemons(running.directory / f"node-{k}")
        assert node.wait(LOOKUPD, 60) == pids[f"lookupd-{k}"]
        assert node.wait(WORKER, 60) == pids[f"worker-{k}"]
    writer, reader = peers(running.directory / "mooncake.json"), peers(running.directory / "mooncake.json")
    data = os.urandom(100_000).hex()
    assert writer.ask("put", key="a", data=data) == 0
    assert reader.ask("get", key="a") == data
    running.close()
    for pid in pids.values():
        wait_gone(pid)


def test_what_dies_is_started_again(running, peers):
    victims = ("master", "store-2", "lookupd-3")
    before = running.until("all programs", running.all_programs)
    for victim in victims:
        os.kill(before[victim], signal.SIGKILL)
    for victim in victims:
        wait_gone(before[victim])

    def anew():
        after = running.all_programs()
        return after and all(after[victim] != before[victim] for victim in victims)

    running.until("new processes", anew)
    running.until("the nodes", lambda: running.capacity_bytes() == 3 * SEGMENT)
    peer = peers(running.directory / "mooncake.json")
    assert peer.ask("put", key="b", data="ff" * 1000) == 0
    assert peer.ask("get", key="b") == "ff" * 1000


def test_what_can_listen_on_loopback_alone_does(running):
    """All but the two ports of each storage node's transfers, which Mooncake 0.3.13 opens to every address."""
    pids = running.until("all programs", running.all_programs)
    wide = [name for name, pid in pids.items() for address in listening(pid) if not address.startswith("127.")]
    assert sorted(wide) == sorted(2 * [f"store-{k}" for k in (1, 2, 3)])


def listening(pid: int) -> list[str]:
    """Addresses on which a process accepts TCP connections."""
    inodes = set()
    for link in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(link))
    found = []
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in pathlib.Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                raw = bytes.fromhex(fields[1].partition(":")[0])
                # Words of the machine's byte order, which is the little one on all that vLLM runs on.
                address = b"".join(raw[i : i + 4][::-1] for i in range(0, len(raw), 4))
                found.append(socket.inet_ntop(family, address))
    return found
