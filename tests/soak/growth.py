"""Does a series of measurements grow? Pure.

A leak grows all the time, what is filled once (caches of an allocator, tables) does not. So a series is said to grow when
the line through it rises by more than an allowance, and its last third still rises at no less than a third of that rate.
The line is that of Theil and Sen, the median of the slopes between all pairs, which spikes do not move.
"""

from __future__ import annotations

import dataclasses
import statistics
from typing import Sequence

MOST_POINTS = 240  # of a line; longer series are thinned out
LEAST_POINTS = 9


@dataclasses.dataclass(frozen=True)
class Sample:
    at_s: float
    value: float


@dataclasses.dataclass(frozen=True)
class Trend:
    """The line through a series."""

    span_s: float
    per_s: float
    end_per_s: float  # of the last third

    @property
    def grown(self) -> float:
        return self.per_s * self.span_s

    def exceeds(self, allowance: float) -> bool:
        return self.grown > allowance and self.end_per_s >= self.per_s / 3


def trend(samples: Sequence[Sample]) -> Trend | None:
    """The trend of a series in order of time, None when it is too short for one."""
    if len(samples) < LEAST_POINTS:
        return None
    span = samples[-1].at_s - samples[0].at_s
    if span <= 0:
        return None
    return Trend(span, _slope(samples), _slope(samples[-len(samples) // 3 :]))


def _slope(samples: Sequence[Sample]) -> float:
    step = -(-len(samples) // MOST_POINTS)
    thin = samples[::step]
    slopes = [
        (later.value - sooner.value) / (later.at_s - sooner.at_s)
        for k, sooner in enumerate(thin)
        for later in thin[k + 1 :]
        if later.at_s > sooner.at_s
    ]
    return statistics.median(slopes) if slopes else 0.0
