"""The daemons of one runtime directory, seen from outside: who they are, and what can befall them."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time

from .client import PATIENCE_S
from .engine import REPOSITORY

LOOKUPD = "mooncake-lookupd"
WORKER = "mooncake-worker"
WORKER_1 = "mooncake-worker of rank 1"
SOCKETS = {LOOKUPD: "lookupd.sock", WORKER: "worker-host-0.sock", WORKER_1: "worker-host-1.sock"}


class Daemons:
    """Finds daemons by their sockets' peer credentials, so it never signals a process of someone else."""

    def __init__(self, runtime_dir: pathlib.Path):
        self.runtime_dir = runtime_dir

    def pid(self, name: str) -> int | None:
        """Process id of the daemon that listens in this runtime directory, None when none does."""
        path = str(self.runtime_dir / SOCKETS[name])
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(5)
            try:
                probe.connect(path)
            except OSError:
                return None
            pid, _, _ = struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return pid if alive(pid) else None

    def wait(self, name: str, limit_s: float = PATIENCE_S, other_than: int | None = None) -> int:
        """Waits until a daemon listens, and with other_than until it is another process."""
        deadline = time.monotonic() + limit_s
        while True:
            pid = self.pid(name)
            if pid is not None and pid != other_than:
                return pid
            if time.monotonic() > deadline:
                raise AssertionError(f"no {name} (other than {other_than}) in {self.runtime_dir} after {limit_s:.0f} s\n" + self.logs())
            time.sleep(0.05)

    def kill(self, name: str) -> int:
        """SIGKILL; returns the process id once the process is gone."""
        pid = self.wait(name)
        os.kill(pid, signal.SIGKILL)
        wait_gone(pid)
        return pid

    def status(self, name: str) -> dict:
        """What the running daemon says of itself."""
        command = [str(REPOSITORY / "bin" / name), "--runtime-dir", str(self.runtime_dir), "status", "--json"]
        return json.loads(subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_S).stdout)

    @contextlib.contextmanager
    def stopped(self, name: str):
        """SIGSTOP within, SIGCONT after (a process that was killed meanwhile is let be)."""
        pid = self.wait(name)
        os.kill(pid, signal.SIGSTOP)
        try:
            yield pid
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def close(self) -> None:
        """Ends every daemon of this runtime directory and waits."""
        for pid in self._by_command_line():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
                os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + 5
        while (left := self._by_command_line()) and time.monotonic() < deadline:
            time.sleep(0.05)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            wait_gone(pid)

    def running(self) -> dict[int, str]:
        """Process id to command line of every daemon that was started for this runtime directory."""
        return self._by_command_line()

    def resident_bytes(self, name: str) -> int:
        """Anonymous memory of the daemon: what it uses beyond files and shared memory."""
        status = pathlib.Path(f"/proc/{self.wait(name)}/status").read_text()
        return next(int(l.split()[1]) << 10 for l in status.splitlines() if l.startswith("RssAnon"))

    def logs(self, lines: int = 30) -> str:
        parts = []
        for log in sorted(self.runtime_dir.glob("*.log")):
            tail = log.read_text(errors="replace").splitlines()[-lines:]
            parts.append(f"--- {log.name}\n" + "\n".join(tail))
        return "\n".join(parts)

    def _by_command_line(self) -> dict[int, str]:
        found = {}
        wanted = os.fsencode(str(self.runtime_dir))
        for entry in os.scandir("/proc"):
            if not entry.name.isdigit():
                continue
            try:
                words = pathlib.Path(entry.path, "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[0] and os.path.basename(words[0]).decode() in SOCKETS and any(wanted in w for w in words[1:]):
                if alive(int(entry.name)):
                    found[int(entry.name)] = b" ".join(words).decode().strip()
        return found


def runtime_directory(near: pathlib.Path, name: str) -> pathlib.Path:
    """A fresh private directory, near a place where that leaves room for socket paths (at most 107 bytes), else in /tmp."""
    path = near / name
    if len(str(path)) > 60:
        return pathlib.Path(tempfile.mkdtemp(prefix="mcs-"))
    if path.exists():
        Daemons(path).close()
        shutil.rmtree(path)
    path.mkdir(parents=True, mode=0o700)
    path.chmod(0o700)
    return path


def alive(pid: int) -> bool:
    """False for a process that is gone, or dead in all of its threads and waiting for a parent that does not care.

    The first thread may be dead while others still end: the process then still holds its sockets.
    """
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] not in "ZX" or len(os.listdir(f"/proc/{pid}/task")) > 1
    except OSError:
        return False


def wait_gone(pid: int, limit_s: float = 120) -> None:
    deadline = time.monotonic() + limit_s
    while alive(pid):
        if time.monotonic() > deadline:
            raise AssertionError(f"process {pid} is still there after {limit_s:.0f} s")
        time.sleep(0.01)
