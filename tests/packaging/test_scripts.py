"""Programs that no other test runs (benchmarks, scripts, the wheel's builder) can at least be imported, with all that they import later.

Each file is imported in a fork of this process, as if it were run from where it lies, and then every import statement within
its functions is carried out: a helper that was renamed shows here, and not in the next measurement.
"""

import ast
import importlib.util
import multiprocessing
import os
import pathlib
import sys
import traceback

import pytest
from conftest import REPOSITORY

PLACES = ("bench", "scripts", "deploy")
FILES = sorted(path.relative_to(REPOSITORY) for place in PLACES for path in (REPOSITORY / place).rglob("*.py"))


def later_imports(source: str) -> list[ast.stmt]:
    """Import statements within functions, but those of a package that an environment of its own has (LMCache)."""
    tree = ast.parse(source)
    functions = [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    found = [n for f in functions for n in ast.walk(f) if isinstance(n, (ast.Import, ast.ImportFrom))]
    return [n for n in found if not any(name.split(".")[0] == "lmcache" for name in imported(n))]


def imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]


def import_whole(file: pathlib.Path) -> None:
    source = file.read_text()
    sys.path.insert(0, str(file.parent))
    if "__main__" not in source:  # a part of a program, which has seen to its parts' path
        sys.path.append(str(REPOSITORY / "tests"))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    for node in later_imports(source):
        exec(compile(ast.Module([node], []), str(file), "exec"), vars(module))


def fault(file: pathlib.Path) -> str:
    """What goes wrong when the file is imported, nothing when all is well."""

    def child(told) -> None:
        os.chdir("/")
        try:
            import_whole(file)
            told.send("")
        except BaseException:
            told.send(traceback.format_exc())

    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=child, args=(sender,))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        return f"{file} ended the process that imported it"
    finally:
        process.join()
        receiver.close()


@pytest.fixture(scope="module", autouse=True)
def vllm():
    """Imported once, for all forks."""
    pytest.importorskip("vllm.v1.engine.core")


@pytest.mark.parametrize("file", FILES, ids=str)
def test_imports(file):
    assert not (wrong := fault(REPOSITORY / file)), wrong


def test_there_are_some():
    assert len(FILES) > 15


@pytest.mark.parametrize(
    "line", ["import no_such_module", "from harness.engine import NoSuchName", "def later():\n    from os import no_such_function"]
)
def test_a_fault_would_be_found(tmp_path, line):
    broken = tmp_path / "broken.py"
    broken.write_text(f"import sys\nsys.path.insert(0, {str(REPOSITORY / 'tests')!r})\n{line}\n")
    assert "ImportError" in (wrong := fault(broken)) or "ModuleNotFoundError" in wrong
