"""Daemons started by hand, as a service manager would: nobody but the test ends them or starts them again."""

from __future__ import annotations

import os
import pathlib
import subprocess
from typing import Mapping

from .daemons import LOOKUPD, WORKER, Daemons


class ByHand:
    """Starts both daemons for a runtime directory. The caller ends them through Daemons.close."""

    def __init__(self, daemons: Daemons, binaries: pathlib.Path, store_bytes: str, environment: Mapping[str, str] | None = None):
        self.daemons, self.binaries, self.store_bytes = daemons, binaries, store_bytes
        self.environment = dict(os.environ) | dict(environment or {})
        self._children: list[subprocess.Popen] = []

    def start(self, name: str) -> int:
        """Starts one daemon and waits until it listens; returns its process id."""
        directory = self.daemons.runtime_dir
        command = [str(self.binaries / name), "--runtime-dir", str(directory), "--log-level", "info"]
        command += ["--store-bytes", self.store_bytes] if name == LOOKUPD else ["--device", "host-0"]
        with open(directory / f"{name}.log", "ab") as log:
            child = subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        self._children.append(child)
        self.daemons.wait(name)
        return child.pid

    def start_all(self) -> "ByHand":
        for name in (LOOKUPD, WORKER):
            self.start(name)
        return self

    def reap(self) -> None:
        """Collects children that have ended."""
        for child in self._children:
            child.poll()
