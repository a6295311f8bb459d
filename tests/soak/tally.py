"""What a leg counted, for people every few seconds and as JSON at its end."""

from __future__ import annotations

import collections
import threading
from typing import Mapping

from harness.client import Metrics

from .counters import LOOKUPD_COUNTERS
from .plan import Leg

# Without each of these a run has shown nothing.
KINDS = (
    "done",
    "aborted",
    "preempted",
    "reset own",
    "reset store",
    "reset preempting",
    "kill lookupd",
    "kill worker",
    "stop lookupd",
    "stop worker",
    "hit tokens",
    "stored keys",
    "evicted",
)
# Nor without these, where copies are slow enough for strikes to meet them.
SLOW_KINDS = ("retries",)
# Nor without these, where there is a disk tier.
DISK_KINDS = ("demoted", "promoted bytes")
# What there is of it without a connector.
PLAIN_KINDS = ("done", "aborted", "preempted", "reset own", "reset preempting")
MOST_FAULTS = 50


class Tally:
    """Counts and faults of one leg; used by all of its threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: collections.Counter[str] = collections.Counter()
        self._faults: list[str] = []
        self._longest_s = 0.0
        self._moved = 0.0

    def add(self, kind: str, count: int = 1) -> None:
        with self._lock:
            self._counts[kind] += count

    def finished(self, seconds: float) -> None:
        with self._lock:
            self._counts["done"] += 1
            self._longest_s = max(self._longest_s, seconds)

    def moved(self, by: float) -> None:
        """So far a right answer's log-probabilities were from the reference's."""
        with self._lock:
            self._moved = max(self._moved, by)

    def fault(self, text: str) -> None:
        """Something that must not be; the run goes on, and fails."""
        with self._lock:
            self._counts["faults"] += 1
            if len(self._faults) < MOST_FAULTS:
                self._faults.append(text)
                print(f"  FAULT: {text}", flush=True)

    def engine(self, begin: Metrics, now: Metrics) -> None:
        """Takes in what the engine has counted since the leg began."""

        def grown(name: str, *labels: str) -> int:
            return int(now.value(name, *labels) - begin.value(name, *labels))

        store, load = "vllm:mooncake_store_operation", 'operation="load_get"'
        whole = grown(f"{store}_total", load, 'status="ok"')
        found = {
            "preempted": grown("vllm:num_preemptions_total"),
            "hit tokens": grown("vllm:external_prefix_cache_hits_total"),
            "loads": grown(f"{store}_total", load),
            # A load that failed in a part is tried again by computing it.
            "retries": grown(f"{store}_total", load) - whole,
            "reported blocks": grown(f"{store}_failed_keys_total", load),
            "stored keys": grown(f"{store}_keys_total", 'operation="save_put"'),
        }
        self._set(found)

    def lookupd(self, totals: Mapping[str, int]) -> None:
        """Takes in what all lives of lookupd have counted until now."""
        self._set(totals)

    @property
    def faults(self) -> list[str]:
        with self._lock:
            return list(self._faults)

    def missing(self, leg: Leg) -> list[str]:
        """Kinds of events that never came, of those that such a leg must see."""
        kinds = PLAIN_KINDS if leg.plain else KINDS + (SLOW_KINDS if leg.slow else ()) + (DISK_KINDS if leg.disk else ())
        with self._lock:
            return [kind for kind in kinds if self._counts[kind] <= 0]

    def line(self) -> str:
        counts, _ = self._snapshot()
        named = ("done", "aborted", "preempted", "hit tokens", "loads", "retries", "reported blocks", "stored keys", *LOOKUPD_COUNTERS)
        events = {k: v for k, v in sorted(counts.items()) if k.split()[0] in ("reset", "kill", "stop", "refused")}
        return ", ".join(f"{counts[n]} {n}" for n in named) + "; " + ", ".join(f"{v} {k}" for k, v in events.items())

    def summary(self) -> dict:
        counts, longest = self._snapshot()
        with self._lock:
            moved = self._moved
        return {"counts": dict(sorted(counts.items())), "longest_request_s": round(longest, 2), "moved": moved, "faults": self.faults}

    def _set(self, found: Mapping[str, int]) -> None:
        with self._lock:
            self._counts.update({key: value - self._counts[key] for key, value in found.items()})

    def _snapshot(self) -> tuple[collections.Counter[str], float]:
        with self._lock:
            return collections.Counter(self._counts), self._longest_s
