"""What processes hold, read from /proc: anonymous memory, descriptors, threads; and the shared memory of all together."""

from __future__ import annotations

import collections
import dataclasses
import math
import os
import pathlib
import re
from typing import Iterable, Mapping

from harness.segment import processes_of_group

from .growth import Sample, Trend, trend
from .plan import DAEMONS

MIB = 1 << 20
SHOWN_POINTS = 40
STORE_FILE = "/memfd:mooncake-store"
# The front end, and what holds the KV cache.
ENGINES = ("engine", "engine EngineCore")
_MAPPED = re.compile(r"^\S+-\S+ \S+ \S+ (\S+) (\d+) +(/dev/shm/\S+|/memfd:\S+)", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Allowance:
    """How much a quantity may grow over all that is seen of a process."""

    grown: float
    # Since the process began, or since the watch did: until then nothing is judged.
    after_s: float


@dataclasses.dataclass(frozen=True)
class Limits:
    """What may come without being a leak."""

    # By quantity, of each of the engine's processes and of each daemon.
    engine: Mapping[str, Allowance]
    daemon: Mapping[str, Allowance]
    # A daemon's memory at any time.
    daemon_bytes: int
    # Of daemons that are judged for a shorter time than brief_s: what comes once in a life is all that such a life shows.
    brief: Mapping[str, Allowance] = dataclasses.field(default_factory=dict)
    brief_s: float = 0.0

    def of(self, name: str, quantity: str, span_s: float = math.inf) -> Allowance:
        if name not in DAEMONS:
            return self.engine[quantity]
        return (self.brief if span_s < self.brief_s else self.daemon)[quantity]

    def least_s(self, name: str) -> float:
        """So long a process must have been watched for its judgement to say something."""
        return self.brief_s if name in DAEMONS else 0.0


@dataclasses.dataclass(frozen=True)
class SharedFile:
    name: str
    bytes: int


class Vitals:
    """Samples of every process that was seen, each process a series of its own."""

    def __init__(self, limits: Limits):
        self._limits = limits
        # (name, process id) -> quantity -> samples
        self._series: dict[tuple[str, int], dict[str, list[Sample]]] = collections.defaultdict(lambda: collections.defaultdict(list))
        self._shared: list[Sample] = []
        self._stores: set[tuple[int, int]] = set()
        self.seen_files: set[str] = set()

    def take(self, at_s: float, processes: Iterable[tuple[str, int]]) -> None:
        """One sample of each. at_s counts from the beginning of the watch."""
        files: dict[tuple[int, int], SharedFile] = {}
        for name, pid in processes:
            try:
                found = _measure(pid)
                files |= _shared_files(pid)
                self.seen_files |= _named_files(pid)
            except OSError:
                continue  # it has ended meanwhile
            for quantity, value in found.items():
                self._series[name, pid][quantity].append(Sample(at_s, value))
        self._shared.append(Sample(at_s, sum(file.bytes for file in files.values())))
        self._stores = {identity for identity, file in files.items() if file.name == STORE_FILE}

    def shared_bytes(self) -> int:
        """Shared memory at the last sample."""
        return int(self._shared[-1].value) if self._shared else 0

    def stores(self) -> int:
        """Stores' memory files that any process had open at the last sample."""
        return len(self._stores)

    def unjudged(self, names: Iterable[str]) -> list[str]:
        """Of these the names of which no process was seen long enough to say in each quantity whether it grows."""
        return [name for name in names if not any(seen == name and self._judged(name, found) for (seen, _), found in self._series.items())]

    def faults(self) -> list[str]:
        """What grew."""
        found = []
        for (name, pid), quantities in sorted(self._series.items()):
            for quantity, samples in quantities.items():
                line = self._trend(name, quantity, samples)
                if line is not None and line.exceeds(self._limits.of(name, quantity, line.span_s).grown):
                    found.append(f"{name} ({pid}): {quantity} grew by {_shown(quantity, line.grown)} in {line.span_s:.0f} s")
            most = max(s.value for s in quantities["memory"])
            if name in DAEMONS and most > self._limits.daemon_bytes:
                found.append(f"{name} ({pid}) had {_shown('memory', most)} of memory of its own")
        return found

    def summary(self) -> dict:
        """By process: its life, and first, last and trend of each quantity after the warm-up."""
        found = {}
        for (name, pid), quantities in sorted(self._series.items()):
            entry = found[f"{name} {pid}"] = {}
            for quantity, samples in quantities.items():
                line = self._trend(name, quantity, samples)
                values = [s.value for s in samples]
                step = -(-len(samples) // SHOWN_POINTS)
                entry[quantity] = {"first": values[0], "last": values[-1], "most": max(values)}
                entry[quantity]["series"] = [(round(s.at_s), s.value) for s in samples[::step]]
                if line is not None:
                    entry[quantity] |= {"judged_s": round(line.span_s), "grown": round(line.grown, 1)}
        return {"processes": found, "shared_bytes": {"most": max((s.value for s in self._shared), default=0), "last": self.shared_bytes()}}

    def _judged(self, name: str, quantities: Mapping[str, list[Sample]]) -> bool:
        lines = [self._trend(name, quantity, samples) for quantity, samples in quantities.items()]
        return all(line is not None and line.span_s >= self._limits.least_s(name) for line in lines)

    def _trend(self, name: str, quantity: str, samples: list[Sample]) -> Trend | None:
        begin = samples[0].at_s + self._limits.of(name, quantity).after_s
        return trend([s for s in samples if s.at_s >= begin])


def processes(cell) -> list[tuple[str, int]]:
    """(name, process id) of the engine's processes and of the daemons."""
    found = []
    for pid in processes_of_group(cell.engine.process.pid):
        found.append((_title(pid, pid == cell.engine.process.pid), pid))
    for pid, command in cell.daemons.running().items():
        found.append(("lookupd" if "mooncake-lookupd" in command.split()[0] else "worker", pid))
    return found


def _title(pid: int, first: bool) -> str:
    if first:
        return "engine"
    try:
        words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "engine ended"
    name = words[0].decode(errors="replace")
    return "engine " + (name.removeprefix("VLLM::") if name.startswith("VLLM::") else "helper")


def _measure(pid: int) -> dict[str, float]:
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    kib = {m[1]: int(m[2]) for m in re.finditer(r"^(RssAnon|VmSwap|Threads):\s+(\d+)", status, re.MULTILINE)}
    return {
        "memory": float((kib.get("RssAnon", 0) + kib.get("VmSwap", 0)) << 10),
        "descriptors": float(len(os.listdir(f"/proc/{pid}/fd"))),
        "threads": float(kib.get("Threads", 0)),
    }


def _shared_files(pid: int) -> dict[tuple[int, int], SharedFile]:
    """Memory files that the process has open, by (device, inode)."""
    found = {}
    for entry in os.scandir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(entry.path)
            if target.startswith(("/memfd:", "/dev/shm/")):
                status = os.stat(entry.path)
                found[status.st_dev, status.st_ino] = SharedFile(target.removesuffix(" (deleted)"), status.st_blocks * 512)
        except OSError:
            continue  # closed meanwhile
    return found


def _named_files(pid: int) -> set[str]:
    """Files in /dev/shm that the process has mapped and that have a name."""
    maps = pathlib.Path(f"/proc/{pid}/maps").read_text()
    return {m[3] for m in _MAPPED.finditer(maps) if m[3].startswith("/dev/shm/") and os.path.exists(m[3])}


def _shown(quantity: str, value: float) -> str:
    return f"{value / MIB:.1f} MiB" if quantity == "memory" else f"{value:.1f}"
