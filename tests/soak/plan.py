"""What befalls the engine and its daemons when, drawn from a seed. Pure."""

from __future__ import annotations

import dataclasses
import random
from typing import Iterator

STRIKE_EVERY_S = 20.0
FIRST_STRIKE_S = 6.0
RESET_EVERY_S = 7.0
LEG_MINUTES = 15.0
# So long a daemon is spared at a time in long legs, for its memory to be watched while the other one is struck.
SPARED_S = 200.0
STOP_S = (0.5, 8.0)

DAEMONS = ("lookupd", "worker")
SIGNALS = ("kill", "stop")
# The engine's own cache; the store with it, while requests run; the engine's own with all that runs preempted.
RESETS = ("own", "store", "preempting")


@dataclasses.dataclass(frozen=True)
class Strike:
    """A daemon is killed, or stopped for so many seconds."""

    at_s: float
    daemon: str
    signal: str
    stop_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.at_s:.0f} s {self.signal} {self.daemon}" + (f" for {self.stop_s:.1f} s" if self.signal == "stop" else "")


@dataclasses.dataclass(frozen=True)
class Reset:
    at_s: float
    kind: str

    def __str__(self) -> str:
        return f"{self.at_s:.0f} s {self.kind}"


@dataclasses.dataclass(frozen=True)
class Leg:
    """One engine's part of a soak."""

    seed: int
    kind: str
    disk: bool
    slow: bool  # copies take so long that strikes meet them
    seconds: float  # with the engine's start
    strikes: tuple[Strike, ...]
    resets: tuple[Reset, ...]
    plain: bool = False  # without a connector: what vLLM does alone

    def without_connector(self) -> "Leg":
        """The same traffic, as a control: no daemons to strike, no store to reset."""
        resets = tuple(reset for reset in self.resets if reset.kind != "store")
        return dataclasses.replace(self, disk=False, slow=False, strikes=(), resets=resets, plain=True)


def legs(
    seed: int, minutes: float, kinds: tuple[str, ...], kind: str | None = None, disk: bool | None = None, slow: bool | None = None
) -> Iterator[Leg]:
    """The legs of a soak: of LEG_MINUTES and more, each of another kind until all have had their turn.

    Args:
        kind: all legs are of this one.
        disk: all legs have a disk tier or none has; None: by turns.
        slow: all legs have slowed copies or none has; None: as drawn.
    """
    rng = random.Random(seed)
    count = max(1, int(minutes // LEG_MINUTES))
    turn: list[str] = []
    with_disk = rng.random() < 0.5
    for _ in range(count):
        if not turn:
            turn = rng.sample(kinds, len(kinds))
        drawn = turn.pop()
        with_delay = rng.random() < 0.5
        yield leg(
            rng.getrandbits(32),
            kind or drawn,
            with_disk if disk is None else disk,
            with_delay if slow is None else slow,
            minutes * 60 / count,
        )
        with_disk = not with_disk


def leg(seed: int, kind: str, disk: bool, slow: bool, seconds: float) -> Leg:
    rng = random.Random(seed)
    return Leg(seed, kind, disk, slow, seconds, tuple(_strikes(rng, seconds)), tuple(_resets(rng, seconds)))


def spared(at_s: float) -> str | None:
    """The daemon that is not struck at that time: every second stretch one of them in turn."""
    stretch = int(at_s // SPARED_S)
    return DAEMONS[stretch // 2 % 2] if stretch % 2 else None


def _strikes(rng: random.Random, seconds: float) -> Iterator[Strike]:
    """First each daemon is struck by each signal, in some order; then whatever comes."""
    first = [(daemon, signal) for daemon in DAEMONS for signal in SIGNALS]
    rng.shuffle(first)
    at = FIRST_STRIKE_S
    while at < seconds:
        daemon, signal = first.pop() if first else (rng.choice(DAEMONS), rng.choice(SIGNALS))
        if (safe := spared(at)) == daemon:
            daemon = next(d for d in DAEMONS if d != safe)
        yield Strike(at, daemon, signal, round(rng.uniform(*STOP_S), 1) if signal == "stop" else 0.0)
        at += STRIKE_EVERY_S


def _resets(rng: random.Random, seconds: float) -> Iterator[Reset]:
    at, kinds = RESET_EVERY_S / 2, []
    while at < seconds:
        if not kinds:
            kinds = rng.sample(RESETS, len(RESETS))
        yield Reset(round(at, 1), kinds.pop())
        at += rng.uniform(0.7, 1.3) * RESET_EVERY_S
