"""Real engines of vLLM on the CPU, each with our connector, behind `mooncake-conductor serve`."""

from __future__ import annotations

import json
import os
import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent), str(HERE.parent), str(HERE)]

from harness import checkpoint  # noqa: E402
from harness.cell import Cell  # noqa: E402
from harness.engine import REPOSITORY, nursery  # noqa: E402
from service import Conductor  # noqa: E402


def pytest_configure(config):
    # One thread an engine: those of several on two cores would wait for each other in turns.
    os.environ |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="session", autouse=True)
def fast_starts():
    with nursery():
        yield


@pytest.fixture(scope="session")
def model() -> pathlib.Path:
    return checkpoint.generate(REPOSITORY / "build" / "checkpoint")


@pytest.fixture()
def cells(model):
    """Makes cells whose engines publish their KV events, with a replay socket, and what the store has among them."""
    made: list[Cell] = []

    def make(name: str, **options) -> Cell:
        cell = Cell(model, name, **options)
        made.append(cell)
        sockets = {which: f"ipc://{cell.directory}/{name}-{which}.sock" for which in ("events", "replay")}
        wanted = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": sockets["events"], "replay_endpoint": sockets["replay"]}
        cell.extra["enable_kv_events"] = True
        cell.options["arguments"] = [*cell.options.get("arguments", ()), "--kv-events-config", json.dumps(wanted)]
        return cell

    yield make
    for cell in made:
        cell.close()


@pytest.fixture()
def serving(directory):
    """Starts conductors in front of engines: (name, port, role) each."""
    made: list[Conductor] = []

    def serve(engines, *arguments: str) -> Conductor:
        place = directory / str(len(made))
        place.mkdir()
        listed = ",".join(f"{name}=http://127.0.0.1:{port}" + (f";{role}" if role else "") for name, port, role in engines)
        conductor = Conductor(place, ("serve", "--engines", listed, *arguments))
        made.append(conductor)
        return conductor.start()

    yield serve
    for conductor in made:
        conductor.__exit__()
