"""The daemons as commands of this package: ``mooncake-lookupd`` and the like in PATH.

A wheel carries the programs in ``bin/``. An installation from source has none;
its commands say so.
"""

import os
import sys

PACKAGE = os.path.dirname(os.path.abspath(__file__))


def places() -> list[str]:
    """Directories that may hold the programs, the wheel's own first. Not PATH: these commands stand there themselves."""
    source_tree = os.path.join(os.path.dirname(os.path.dirname(PACKAGE)), "bin")
    return [place for place in (os.path.join(PACKAGE, "bin"), os.environ.get("MOONCAKE_SIDECAR_BIN", ""), source_tree) if place]


def is_wrapper(path: str) -> bool:
    """Whether a file is one of these commands and not the program itself."""
    try:
        with open(path, "rb") as file:
            return b"mooncake_sidecar.programs" in file.read(1024)
    except OSError:
        return False


def _run(program: str) -> None:
    for place in places():
        path = os.path.join(os.path.abspath(place), program)
        if os.access(path, os.X_OK):
            try:
                os.execv(path, [program, *sys.argv[1:]])
            except OSError as error:
                sys.exit(f"{program}: {path} can't be run here: {error.strerror}")
    sys.exit(
        f"{program}: this installation of mooncake-sidecar has no programs (looked in {', '.join(places())}); "
        "install the wheel, or set MOONCAKE_SIDECAR_BIN to where `make build` left them"
    )


def lookupd() -> None:
    """Become mooncake-lookupd."""
    _run("mooncake-lookupd")


def worker() -> None:
    """Become mooncake-worker."""
    _run("mooncake-worker")


def conductor() -> None:
    """Become mooncake-conductor."""
    _run("mooncake-conductor")


def bench() -> None:
    """Become mooncake-bench."""
    _run("mooncake-bench")
