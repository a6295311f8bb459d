"""Which running requests may have something new to save, without a look at each.

A request that only decodes has nothing to save until it crosses a block
boundary, so it is looked at only when it may have. How many tokens it can have
gained is bounded by the most that any such request was given in each step.
"""

from collections.abc import Mapping
from heapq import heappop, heappush
from itertools import repeat

from mooncake_sidecar.tracker import Entry


class Growth:
    """Requests that a later step may save from; pure.

    INVARIANT: a request in ``_decoding`` has an item in ``_heap`` with its
    serial, and by the time ``_gained`` reaches the item's first field at the
    latest it may have come to the tokens it was watched for.
    """

    def __init__(self) -> None:
        self._prefilling: dict[str, Entry] = {}
        self._decoding: dict[str, tuple[int, Entry]] = {}
        self._heap: list[tuple[int, int, str]] = []
        self._gained = 0
        """The most that any one request can have gained since the start, in tokens."""
        self._serial = 0

    def __len__(self) -> int:
        return len(self._prefilling) + len(self._decoding)

    def watch_prefill(self, request_id: str, entry: Entry) -> None:
        """Look at the request in every step that it is scheduled in."""
        self._decoding.pop(request_id, None)
        self._prefilling[request_id] = entry

    def watch_decode(self, request_id: str, entry: Entry, scheduled_to: int, tokens: int) -> None:
        """Look at the request when it may have ``tokens`` tokens.

        Args:
            scheduled_to: computed at the end of this step, drafts counted.
        """
        self._prefilling.pop(request_id, None)
        self._serial += 1
        self._decoding[request_id] = (self._serial, entry)
        heappush(self._heap, (self._gained + tokens - scheduled_to, self._serial, request_id))

    def forget(self, request_id: str) -> None:
        """The request was preempted, has ended or has nothing more to save."""
        self._prefilling.pop(request_id, None)
        self._decoding.pop(request_id, None)

    def due(self, scheduled: Mapping[str, int]) -> list[tuple[str, Entry]]:
        """The requests to look at in this step; those that decode are to be watched again.

        Args:
            scheduled: tokens by request.
        """
        found = [(name, entry) for name, entry in self._prefilling.items() if name in scheduled]
        if self._decoding:
            most = max(scheduled.values(), default=0)
            if most > 1:  # someone else's prefill, perhaps
                most = max(map(scheduled.get, self._decoding, repeat(0)))
            self._gained += most
            heap = self._heap
            waiting = []
            while heap and heap[0][0] <= self._gained:
                _, serial, request_id = heappop(heap)
                watched = self._decoding.get(request_id)
                if watched is None or watched[0] != serial:
                    continue
                if request_id in scheduled:
                    found.append((request_id, watched[1]))
                else:
                    waiting.append((self._gained, serial, request_id))
            for item in waiting:
                heappush(heap, item)
        else:
            self._heap.clear()
        return found
