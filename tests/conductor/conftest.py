"""Fixtures: the conductor's process, and vLLM's pools and publishers in this one."""

from __future__ import annotations

import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from pools import Prompts, Rank, hashing  # noqa: E402
from relay import Relay  # noqa: E402
from service import Conductor  # noqa: E402

MODEL = "model"


@pytest.fixture()
def conductor(directory):
    with Conductor(directory) as made:
        yield made


@pytest.fixture(scope="session")
def function():
    """vLLM's default hash function."""
    return hashing("sha256")


@pytest.fixture()
def prompts(function):
    return Prompts(function, seed=1)


@pytest.fixture()
def ranks(directory, prompts):
    """Makes ranks, and closes them."""
    made: list[Rank] = []

    def make(name: str, rank: int = 0, **options) -> Rank:
        made.append(Rank(directory, name, rank, **({"prompts": prompts, "seed": len(made)} | options)))
        return made[-1]

    yield make
    for rank in made:
        rank.close()


@pytest.fixture()
def relays(directory):
    """Makes lossy ways to a rank's live messages, and closes them."""
    made: list[Relay] = []

    def make(rank: Rank) -> Relay:
        made.append(Relay(rank.endpoint, f"ipc://{directory}/{rank.name}-{rank.rank}.relay", seed=len(made)))
        return made[-1]

    yield make
    for relay in made:
        relay.close()


def pytest_ignore_collect(collection_path, config):
    """What is in engines/ starts vLLM several times and wants the machine to itself: it runs when it is named."""
    if collection_path == HERE / "engines":
        return not any("engines" in str(argument) for argument in config.args)
    return None
