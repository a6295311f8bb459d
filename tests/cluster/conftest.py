"""Fixtures: a cluster of a test's own, and clients of Mooncake's wheel."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS), str(TESTS.parent / "scripts")]

from harness.cluster import LOOPBACK, Cluster, available  # noqa: E402
from harness.engine import REPOSITORY  # noqa: E402

PEER = REPOSITORY / "store" / "mooncake" / "mooncaketest" / "peer.py"


def pytest_collection_modifyitems(items):
    why = available()
    for item in items:
        if why and "directory" in item.fixturenames:
            item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture()
def cluster(directory):
    # A node that is not heard of for ten seconds is gone; of fewer one may be robbed by whatever else runs here.
    with Cluster(directory / "cluster", segment_bytes=64 << 20) as made:
        yield made


class Peer:
    """A client that lends nothing, in a process of its own; its operations are the methods of peer.py."""

    def __init__(self, config_path: pathlib.Path, log: pathlib.Path):
        config = json.loads(config_path.read_text())
        with open(log, "ab") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-u", str(PEER), config["metadata_server"], config["master_server_address"], "0"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=os.environ | LOOPBACK,
            )
        self._answer()

    def ask(self, operation: str, **arguments):
        self.process.stdin.write(json.dumps({"op": operation} | arguments).encode() + b"\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self):
        reply = json.loads(self.process.stdout.readline() or '{"error": "it ended"}')
        if "error" in reply:
            raise RuntimeError(f"peer: {reply['error']}")
        return reply["ok"]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture()
def peers(directory):
    """Makes peers of a cluster, and ends them."""
    made: list[Peer] = []

    def make(config_path: pathlib.Path) -> Peer:
        made.append(Peer(config_path, directory / "peers.log"))
        return made[-1]

    yield make
    for peer in made:
        peer.close()
