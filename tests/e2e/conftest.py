"""Fixtures: one checkpoint, one engine without a connector as the reference, one with ours that most tests share.

`make test` runs these files by two processes of pytest-xdist, each of which has such engines of its own. What a test makes
must therefore not be known by a fixed name on the machine: directories are fresh ones, ports are the kernel's choice.
"""

from __future__ import annotations

import os
import pathlib
import sys

import pytest

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS))

from harness import checkpoint  # noqa: E402
from harness.cell import Cell  # noqa: E402
from harness.client import Completion  # noqa: E402
from harness.compare import Noise, measure  # noqa: E402
from harness.engine import REPOSITORY, Engine, nursery  # noqa: E402
from harness.prompts import Prompts  # noqa: E402


# Files by the time that they take, longest first: the last ones to run are then short, and no process is long alone.
LONGEST_FIRST = (
    "test_kinds.py",
    "test_safe.py",
    "test_companions.py",
    "test_recurrent.py",
    "test_in_tree.py",
    "test_right.py",
    "test_fence.py",
    "test_pressure.py",
)

# Ranks that wait for each other in loops take a core each; beside other engines they take minutes.
ALONE = ("test_ranks.py", "test_sizes.py")


def pytest_configure(config):
    config.addinivalue_line("markers", "alone: wants the machine to itself")
    # Else each engine binds a thread to every core, and those of two engines wait for each other in turns. One thread is
    # also one order of sums, in all engines that are compared.
    os.environ |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}


@pytest.hookimpl(tryfirst=True)  # before -m looks at markers
def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.name in ALONE:
            item.add_marker("alone")
    place = {name: k for k, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: place.get(item.path.name, len(place)))  # stable: a file's tests keep their order


@pytest.fixture(scope="session", autouse=True)
def fast_starts():
    """For all engines; autouse, so that it ends after them."""
    with nursery():
        yield


@pytest.fixture(scope="session")
def model() -> pathlib.Path:
    return checkpoint.generate(REPOSITORY / "build" / "checkpoint")


@pytest.fixture(scope="session")
def plain(model, tmp_path_factory):
    """vLLM without any connector: what is right."""
    # Room for all that `noise` asks at once; memory is what two processes' engines have least of.
    with Engine(model, tmp_path_factory.mktemp("plain"), name="plain", blocks=640) as engine:
        yield engine.wait_ready()


@pytest.fixture(scope="session")
def reference(plain):
    """A function from prompts to right outputs, each computed once, without any cache.

    One at a time, unless at_once says otherwise: long outputs take minutes that way, and noise allows for batches.
    """
    known: dict[tuple, Completion] = {}

    def outputs(prompts, max_tokens: int = 16, at_once: int = 1) -> list[Completion]:
        new = [p for p in prompts if (max_tokens, *p) not in known]
        for i in range(0, len(new), at_once):
            plain.forget()
            group = new[i : i + at_once]
            for prompt, output in zip(group, plain.client.complete_many(group, max_tokens, at_once)):
                known[(max_tokens, *prompt)] = output
        return [known[(max_tokens, *prompt)] for prompt in prompts]

    return outputs


@pytest.fixture(scope="session")
def noise(plain, reference, model, request) -> Noise:
    """How much vLLM's own outputs move when requests share batches and prefixes are cached, without any connector."""
    cut = Prompts(model, seed=1001)
    head = cut.fresh(2000)
    prompts = [cut.fresh(n) for n in (700, 1500, 2600, 3900, 5000, 900, 1300, 2100)]
    prompts += [head + cut.text(n) for n in (100, 400, 900, 1400, 2000, 2600, 3000, 3300)]
    alone = reference(prompts, 24)
    plain.forget()
    together = plain.client.complete_many(prompts, 24)
    cached = plain.client.complete_many(prompts, 24)
    seen = [measure(alone, together), measure(alone, cached)]
    # Batches are made as requests happen to come. Where they were small the sample shows less than this, which wrong bytes exceed by far.
    found = Noise(max(2e-5, *(n.largest for n in seen)), sum(n.positions for n in seen))
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print(f"\nvLLM's own batch noise: {found}; tokens must agree where the best leads by more than {found.margin:.2e}")
    return found


@pytest.fixture(scope="session")
def shared(model):
    """An engine with our connector and a roomy store, for tests that leave both in order."""
    with Cell(model, "shared") as cell:
        yield cell.start()


@pytest.fixture()
def cells(model):
    """Makes cells of a test's own, and ends them after it."""
    made: list[Cell] = []

    def make(name: str, **options) -> Cell:
        made.append(Cell(model, name, **options))
        return made[-1]

    yield make
    for cell in made:
        cell.close()


@pytest.fixture()
def cut(model, request) -> Prompts:
    """Prompts of this test's own: named tests never share a block by accident."""
    return Prompts(model, seed=sum(request.node.nodeid.encode()) * 7919)


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist sends the report away
def pytest_runtest_logreport(report):
    """A failing end-to-end test without the daemons' last words is not worth much, nor is an engine that did not start."""
    if report.failed and report.when in ("setup", "call"):
        report.sections += [(f"daemons of {name}", text) for name, text in Cell.last_words()]
