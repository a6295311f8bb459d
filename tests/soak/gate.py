"""Where clients wait while the engine is to become idle."""

from __future__ import annotations

import contextlib
import threading
from typing import Iterator


class Gate:
    """Open at first."""

    def __init__(self) -> None:
        self._opened = threading.Event()
        self._opened.set()

    def wait(self) -> None:
        """Returns when the gate is open."""
        self._opened.wait()

    def open(self) -> None:
        self._opened.set()

    @contextlib.contextmanager
    def closed(self) -> Iterator[None]:
        self._opened.clear()
        try:
            yield
        finally:
            self._opened.set()
