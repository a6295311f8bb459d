"""Real text that every machine with Python has: the language's help topics, and the standard library's sources."""

from __future__ import annotations

import functools
import pathlib
import random
import sysconfig

MIN_CHARACTERS = 400_000


@functools.cache
def text() -> str:
    """At least MIN_CHARACTERS of English prose and Python, always in the same order on one machine."""
    parts = list(_topics())
    have = sum(map(len, parts))
    stdlib = pathlib.Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(stdlib.glob("*.py")):
        if have >= MIN_CHARACTERS:
            break
        part = path.read_text(encoding="utf-8", errors="replace")
        parts.append(part)
        have += len(part)
    return "\n\n".join(parts)


def _topics() -> list[str]:
    try:
        from pydoc_data.topics import topics
    except ImportError:  # left out by some distributions' smallest Python packages
        return []
    return [topics[name] for name in sorted(topics)]


def passage(rng: random.Random, characters: int) -> str:
    """A stretch of the corpus at a random place, beginning at a line's start."""
    whole = text()
    if characters >= len(whole):
        raise ValueError(f"a passage of {characters} characters from a corpus of {len(whole)}")
    start = rng.randrange(len(whole) - characters)
    start = whole.rfind("\n", 0, start) + 1
    return whole[start : start + characters]
