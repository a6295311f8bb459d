"""Ranks that a conductor follows, and what must be so once it has caught up."""

from __future__ import annotations

import time
from typing import Iterable

from pools import BLOCK, Rank, Request
from relay import Relay
from service import Conductor, until

MODEL = "model"


def register(conductor: Conductor, rank: Rank, relay: Relay | None = None, **fields) -> None:
    conductor.post(
        "/register",
        **{
            "endpoint": relay.endpoint if relay else rank.endpoint,
            "replay_endpoint": rank.replay_endpoint,
            "type": "vLLM",
            "modelname": MODEL,
            "instance_id": rank.name,
            "block_size": BLOCK,
            "dp_rank": rank.rank,
        }
        | fields,
    )


NUDGE_S = 1.0


def caught_up(conductor: Conductor, ranks: Iterable[Rank], state: str | None = "complete") -> None:
    """Waits until all that was published is known.

    A message that was lost shows when another follows, so an empty one does; another one after a while, for that may have
    been lost, too: a publisher does not hear of a subscription as soon as it is made.
    """
    nudged = 0.0

    def so() -> bool:
        nonlocal nudged
        services = conductor.services()
        behind = [rank for rank in ranks if not _knows(services[rank.name, rank.rank], rank, state)]
        if time.monotonic() - nudged > NUDGE_S:
            for rank in behind if nudged else ranks:
                rank.publish([])
            nudged = time.monotonic()
            return False
        return not behind

    until(so, lambda: f"{[(r.name, r.rank, r.sent) for r in ranks]}, {conductor.services()}\n{conductor.log()}")


def heard(rank: Rank, relay: Relay) -> None:
    """Waits until the relay has had all that was published: loss that ends before is none.

    A message is published again and again until one comes, for the relay subscribes anew at a publisher that was restarted.
    """
    nudged = time.monotonic()

    def so() -> bool:
        nonlocal nudged
        if relay.heard == rank.sent - 1:
            return True
        if time.monotonic() - nudged > NUDGE_S:
            rank.publish([])
            nudged = time.monotonic()
        return False

    until(so, lambda: f"{rank.name}/{rank.rank} has sent {rank.sent}, the relay has heard number {relay.heard}")


def _knows(service: dict, rank: Rank, state: str | None) -> bool:
    return service["next_sequence"] == rank.sent and service["state"] in ((state,) if state else ("complete", "incomplete"))


def differences(conductor: Conductor, ranks: Iterable[Rank], requests: list[Request]) -> tuple[int, list[str], list[str]]:
    """Asks for every request: how many hits there are, what is said to be held and is not, and what is held and not said."""
    hits, more, less = 0, [], []
    rows = conductor.query_many([request.query(MODEL) for request in requests])
    for request, row in zip(requests, rows):
        for rank in ranks:
            said = row[rank.name]["DP"].get(str(rank.rank), 0)
            held = rank.held(request) * BLOCK
            hits += held > 0
            if said != held:
                what = f"{rank.name}/{rank.rank}: {request.all_token_ids[::BLOCK]} salt {request.cache_salt} adapter {request.adapter}: {said} tokens, held are {held}"
                (more if said > held else less).append(what)
    return hits, more, less
