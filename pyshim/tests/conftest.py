"""Fixtures: the fake daemon as a process of its own, and a stand-in engine geometry."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from mooncake_sidecar import daemons, registrar, registration
from mooncake_sidecar.messages import GroupSpec, NamespaceSpec
from mooncake_sidecar.namespace import Geometry

pytest.register_assert_rewrite("gpurig")

FAKE = Path(__file__).with_name("fake_daemon.py")
PATIENCE_S = 60
"""For what comes for certain, however busy the machine is."""


class FakeDaemon:
    """A running fake daemon and its control channel."""

    def __init__(self, directory: str, *flags: str) -> None:
        self.directory = directory
        self.process = subprocess.Popen([sys.executable, str(FAKE), directory, *flags], stdout=subprocess.PIPE)
        assert self.process.stdout.readline() == b"ready\n"
        self._control = None

    def order(self, **order):
        if self._control is None:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.settimeout(PATIENCE_S)
            sock.connect(os.path.join(self.directory, "control.sock"))
            self._control = sock.makefile("rw")
        self._control.write(json.dumps(order) + "\n")
        self._control.flush()
        return json.loads(self._control.readline())

    def stats(self):
        return self.order(stats=True)

    def stop(self):
        os.kill(self.process.pid, signal.SIGSTOP)

    def wake(self):
        os.kill(self.process.pid, signal.SIGCONT)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """A daemon that runs answers those who look for it and register, though other processes have the cores for a while."""
    monkeypatch.setattr(daemons.probe, "__defaults__", (PATIENCE_S,))
    monkeypatch.setattr(registrar, "_ANSWER_S", PATIENCE_S)
    monkeypatch.setattr(registration, "_WELCOME_S", PATIENCE_S)
    monkeypatch.setattr(registration, "_REGISTER_S", PATIENCE_S)


@pytest.fixture
def runtime_dir():
    # Short: socket paths are limited to 107 bytes.
    with tempfile.TemporaryDirectory(prefix="ms-") as path:
        yield path


@pytest.fixture
def start_daemon(runtime_dir):
    running = []

    def start(*flags: str) -> FakeDaemon:
        daemon = FakeDaemon(runtime_dir, *flags)
        running.append(daemon)
        return daemon

    yield start
    for daemon in running:
        daemon.close()


@pytest.fixture
def make_engine(tmp_path, runtime_dir):
    """Makes engines: our scheduler role inside vLLM's real scheduler."""
    from engine import Engine, write_model  # these need vLLM, other tests do not

    engines = []

    def make(**config):
        engines.append(Engine(write_model(tmp_path), runtime_dir, **config))
        return engines[-1]

    yield make
    for engine in engines:
        engine.scheduler.shutdown()


def make_geometry(block=16, groups=1, kinds=None, hash_tokens=None, alignment=0, use_eagle=False, page=256) -> Geometry:
    """A geometry without an engine."""
    kinds = kinds or ["full_attention"] * groups
    spec = NamespaceSpec(
        model="m",
        revision="",
        fingerprint="",
        cache_prefix="",
        dtype="bfloat16",
        layout="LBHNC/rank_local",
        hash_algorithm="sha256",
        hash_bytes=32,
        hash_block_tokens=hash_tokens or block,
        scheduler_block_tokens=block,
        hit_alignment_tokens=alignment,
        use_eagle=use_eagle,
        retention_tokens=-1,
        tp=1,
        pp=1,
        pcp=1,
        dcp=1,
        groups=[GroupSpec(kind, block, 0, False, kind, page, 1) for kind in kinds],
    )
    return Geometry(spec, tuple(range(len(kinds))), (1,) * len(kinds))
