"""The wheel, built once for all tests of this directory."""

import pathlib
import subprocess
import sys

import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
BUILD = REPOSITORY / "deploy" / "wheel" / "build.py"


def build_wheel(output: pathlib.Path) -> pathlib.Path:
    done = subprocess.run(
        [sys.executable, str(BUILD), "--output", str(output)], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert done.returncode == 0, done.stdout[-4000:]
    (wheel,) = output.glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def wheel(tmp_path_factory) -> pathlib.Path:
    return build_wheel(tmp_path_factory.mktemp("dist"))
