"""What a daemon counted in all of its lives: each begins anew at zero, and ends when it is struck."""

from __future__ import annotations

import http.client
from typing import Mapping

from harness.client import Metrics
from harness.daemons import LOOKUPD

from . import remains

# A stopped daemon does not answer; samples of all else wait meanwhile.
ANSWER_LIMIT_S = 1.0
_PREFIX = "mooncake_sidecar_"

# By the name in a tally, pieces of lookupd's counters: (name, labels...).
LOOKUPD_COUNTERS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "evicted": tuple(("store_removed_chunks_total", 'tier="memory"', f'reason="{why}"') for why in ("evicted", "demoted", "slab")),
    "demoted": (("store_migrated_chunks_total", 'direction="down"', 'result="written"'),),
    "promoted bytes": (("store_promoted_bytes_total",),),
}


class Counters:
    """Sums over lives. Of what a life counted after its last sample nothing is known."""

    def __init__(self) -> None:
        self._lives: dict[int, dict[str, int]] = {}

    def take(self, pid: int, page: Metrics) -> None:
        """A page of the life that has this process id."""
        self._lives[pid] = {
            name: sum(int(page.value(_PREFIX + counter, *labels)) for counter, *labels in parts) for name, parts in LOOKUPD_COUNTERS.items()
        }

    def totals(self) -> dict[str, int]:
        return {name: sum(life[name] for life in self._lives.values()) for name in LOOKUPD_COUNTERS}

    def sample(self, cell) -> None:
        """Asks lookupd; whether it answers or not is for others to judge."""
        pid = next((pid for pid, command in cell.daemons.running().items() if LOOKUPD in command.split()[0]), None)
        if pid is None:
            return
        try:
            page = remains.daemon_metrics(cell, LOOKUPD, ANSWER_LIMIT_S)
        except (OSError, http.client.HTTPException):
            return
        # Another process may have taken its place meanwhile.
        if pid in cell.daemons.running():
            self.take(pid, page)
