"""What tests of every kind share."""

from __future__ import annotations

import pathlib
import shutil
import tempfile

import pytest


@pytest.fixture()
def directory():
    """A fresh private directory with room for sockets, whose paths may have 107 bytes at most; pytest's own are too deep."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="mcs-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)
