"""libzmq as a static library, from its plain source.

Distributions' static libzmq wants Kerberos, libsodium, PGM and NORM of whoever
links it. This build has none of them: the daemons speak ipc only. CURVE, for
endpoints on TCP, would need libsodium built here too; it is left out as long as
there is no such endpoint.
"""

import json
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

VERSION = "4.3.5"
MODULE = f"github.com/zeromq/libzmq@v{VERSION}+incompatible"
# Of the module's whole tree, as in a go.sum.
MODULE_SUM = "h1:G/4TiQworD9BB99OgQBC6KjwlOMElBCV825cHBGd5fs="

# In place of the platform.hpp that configure would write: what every Linux with glibc has.
_DEFINES = (
    "ZMQ_STATIC",
    "ZMQ_HAVE_LINUX",
    "ZMQ_HAVE_IPC",
    "ZMQ_HAVE_UIO",
    "ZMQ_HAVE_STRUCT_SOCKADDR_UN",
    "ZMQ_HAVE_SOCK_CLOEXEC",
    "ZMQ_HAVE_EVENTFD",
    "ZMQ_HAVE_EVENTFD_CLOEXEC",
    "ZMQ_HAVE_O_CLOEXEC",
    "ZMQ_HAVE_SO_PEERCRED",
    "ZMQ_IOTHREAD_POLLER_USE_EPOLL",
    "ZMQ_IOTHREAD_POLLER_USE_EPOLL_CLOEXEC",
    "ZMQ_POLL_BASED_ON_POLL",
    "ZMQ_USE_CV_IMPL_STL11",
    "ZMQ_CACHELINE_SIZE=64",
    "HAVE_STRNLEN",
    "HAVE_FORK",
    "HAVE_MKDTEMP",
    "HAVE_ACCEPT4",
)
# WebSockets do not compile unless they are wanted; other transports that are not wanted compile to nothing.
_LEFT_OUT = ("ws_", "wss_")


class LibzmqError(RuntimeError):
    """The library can't be built; the text says what to do."""


def fetch(directory: Path) -> Path:
    """The source tree, read-only, as the Go client brings it: a Go module proxy serves any tagged repository.

    Args:
        directory: for a module to ask from; our own must not require C++ sources.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "go.mod").write_text("module libzmq-source\n")
    told = subprocess.run(["go", "mod", "download", "-json", MODULE], cwd=directory, text=True, capture_output=True)
    try:
        found = json.loads(told.stdout)
    except ValueError:
        raise LibzmqError(f"go could not fetch {MODULE}:\n{told.stderr}") from None
    if told.returncode or "Error" in found:
        raise LibzmqError(f"go could not fetch {MODULE}:\n{found.get('Error', told.stderr)}")
    if found["Sum"] != MODULE_SUM:
        raise LibzmqError(f"{MODULE} has the sum {found['Sum']}, expected {MODULE_SUM}")
    return Path(found["Dir"])


def build(source: Path, prefix: Path, compiler: list[str], archiver: list[str], jobs: int) -> None:
    """Compile ``source`` and install library, headers and licence below ``prefix``.

    Args:
        compiler: the C++ compiler and its target options.
        archiver: ``ar``, able to write archives without dates.
    """
    objects = prefix / "obj"
    shutil.rmtree(prefix, ignore_errors=True)
    for directory in (objects, prefix / "include", prefix / "lib"):
        directory.mkdir(parents=True)
    (objects / "platform.hpp").touch()
    flags = ["-O2", "-g0", "-fPIC", "-std=c++11", "-w", f"-ffile-prefix-map={source}=libzmq"]
    flags += [f"-D{name}" if "=" in name else f"-D{name}=1" for name in _DEFINES]
    flags += [f"-I{objects}", f"-I{source / 'include'}", f"-I{source / 'src'}"]
    files = sorted(file for file in (source / "src").glob("*.cpp") if not file.name.startswith(_LEFT_OUT))

    def compile_one(file: Path) -> Path:
        target = objects / f"{file.stem}.o"
        subprocess.run([*compiler, *flags, "-c", str(file), "-o", str(target)], check=True)
        return target

    with ThreadPoolExecutor(jobs) as pool:
        compiled = list(pool.map(compile_one, files))
    subprocess.run([*archiver, "rcsD", str(prefix / "lib" / "libzmq.a"), *map(str, compiled)], check=True)
    for header in ("zmq.h", "zmq_utils.h"):
        shutil.copy(source / "include" / header, prefix / "include")
    shutil.copy(source / "LICENSE", prefix / "LICENSE")
    shutil.rmtree(objects)
