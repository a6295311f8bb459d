"""When the GPU has done what the engine gave it: events that the daemon sees, or that this process asks.

The daemon must read no block before the step that fills it is done, and write
none that a step before still uses. At each hook with jobs one event is recorded
on the engine's stream, and the jobs wait for it: in the daemon, where it has the
events; else here, where jobs are held back until the event has happened. Events
may be refused by CUDA, and by a daemon that can't open them.
"""

import logging
from typing import Any, Protocol

logger = logging.getLogger("vllm.mooncake_sidecar.gpuevents")

# More than the steps that may be under way: an event that is recorded again while
# a job waits for it makes the job wait longer.
RING = 64


class Mark(Protocol):
    """A point in the engine's work."""

    def query(self) -> bool:
        """Whether all before it is done, without waiting."""
        ...


class EventRing:
    """Events that were shared at the registration."""

    def __init__(self, torch: Any, count: int = RING) -> None:
        """Raises:
        RuntimeError: CUDA does not share events here.
        """
        self._events = [torch.cuda.Event(enable_timing=False, interprocess=True) for _ in range(count)]
        self.handles: list[bytes] = [bytes(event.ipc_handle()) for event in self._events]
        self._next = 0
        self.marks = Marks(torch)
        """For daemons that can't open the events."""

    def record(self) -> int:
        """Record the next event on the current stream, and return its number."""
        slot = self._next
        self._next = (slot + 1) % len(self._events)
        self._events[slot].record()
        return slot


class Marks:
    """Events of this process alone."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def record(self) -> Mark:
        """Record an event on the current stream."""
        event = self._torch.cuda.Event(enable_timing=False)
        event.record()
        return event


def make(torch: Any) -> EventRing | Marks:
    """A ring if the GPU's driver shares events, else marks."""
    try:
        return EventRing(torch)
    except RuntimeError as error:
        logger.warning("CUDA events can't be shared (%s): jobs are held back until the GPU is through", error)
        return Marks(torch)
