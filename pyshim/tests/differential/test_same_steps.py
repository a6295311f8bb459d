"""Random cases: ours and the in-tree connector do the same at every step, except for what ``rules`` names.

``MOONCAKE_SIDECAR_STEP_CASES`` is the number of cases, ``MOONCAKE_SIDECAR_STEP_SEED`` the first one's seed.
"""

import os
from collections import Counter

import pytest

pytest.importorskip("vllm")

from engine import write_model

from . import rules
from .engine import Engine
from .plan import Story, draw

# What a run must have come to, and how often at least in 220 cases; less means that the cases test nothing.
WANTED = {
    "loads": 400,
    "a load failed": 40,
    "a load goes on where the engine's own cache ends": 100,
    "a lookup was pending": 300,
    "aborted while loading": 5,
    "a rank failed a save": 500,
    "a save with null blocks": 500,
    "boundary puts": 1000,
    "boundary puts alone": 20,
    "a tail ends with its request": 10,
    "chunks of a prompt": 2000,
    "drafts accepted": 1000,
    "drafts rejected": 1000,
    "what was decoded is saved": 500,
    "preempted": 150,
    "preempted while a save is pending": 30,
    "a resumed request is saved": 300,
    "a resumed request loads": 30,
    "resets": 60,
    "steps while one is in flight": 2000,
}
CASES = int(os.environ.get("MOONCAKE_SIDECAR_STEP_CASES", "220"))
SEED = int(os.environ.get("MOONCAKE_SIDECAR_STEP_SEED", "1"))


def run(path, runtime_dir, seed, steps=60):
    """One case. Returns (states seen, rules used)."""
    engine = Engine(path, runtime_dir, draw(seed))
    try:
        Story(engine, steps).run()
    finally:
        engine.pair.shutdown()
    return engine.notes.seen, engine.notes.used


def test_both_connectors_do_the_same(tmp_path, runtime_dir):
    path = write_model(tmp_path)
    seen, used = Counter(), Counter()
    for seed in range(SEED, SEED + CASES):
        try:
            more, explained = run(path, runtime_dir, seed)
        except Exception as error:
            error.add_note(f"case {draw(seed)}")
            raise
        seen += more
        used += explained
    print(f"\n{CASES} cases from seed {SEED}")
    for name, count in sorted(seen.items()):
        print(f"  {count:8d} {name}")
    for name, count in used.items():
        print(f"  {count:8d} explained by: {name}")
    if CASES >= 220:
        missed = {name: seen[name] for name, least in WANTED.items() if seen[name] * 220 < least * CASES}
        assert not missed, f"the cases did not come to {missed}"
        assert used.keys() <= set(rules.ALL.values())
