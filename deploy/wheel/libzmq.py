"""libzmq as a static library, from its plain source.

Distributions' static libzmq wants Kerberos, libsodium, PGM and NORM of whoever
links it. This build has none of them: the daemons speak ipc only. CURVE, for
endpoints on TCP, would need libsodium built here too; it is left out as long as
there is no such endpoint.
"""

import hashlib
import os
import shutil
import subprocess
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

VERSION = "4.3.5"
CRATE_VERSION = "0.3.6"
CRATE = f"zeromq-src-{CRATE_VERSION}+{VERSION}"
CRATE_SHA256 = "d9a1c884770df9c1b3eb0a0ad01d7516234879e0ce144c505348550f2492923e"

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
    """The unpacked source as cargo brings it from the registry that it is configured for, checked against the pinned digest."""
    source = directory / CRATE
    if (source / "vendor").is_dir():
        return source
    directory.mkdir(parents=True, exist_ok=True)
    data = _from_cargo(directory / "cargo")
    found = hashlib.sha256(data).hexdigest()
    if found != CRATE_SHA256:
        raise LibzmqError(f"{CRATE}.crate has SHA-256 {found}, expected {CRATE_SHA256}")
    archive = directory / f"{CRATE}.crate"
    archive.write_bytes(data)
    with tarfile.open(archive) as tar:
        tar.extractall(directory, filter="data")
    return source


def _cargo() -> str:
    """A cargo that works: rustup's stands in PATH even for users who have no toolchain."""
    for cargo in ("cargo", "/usr/bin/cargo"):
        if shutil.which(cargo) and subprocess.run([cargo, "--version"], capture_output=True).returncode == 0:
            return cargo
    raise LibzmqError(
        f"cargo brings libzmq's source ({CRATE}), and there is none that works: install it (Debian: apt-get install cargo)"
    )


def _from_cargo(project: Path) -> bytes:
    cargo = _cargo()
    (project / "src").mkdir(parents=True, exist_ok=True)
    (project / "src" / "lib.rs").touch()
    (project / "Cargo.toml").write_text(
        '[package]\nname = "fetch"\nversion = "0.0.0"\nedition = "2021"\n\n'
        f'[dependencies]\nzeromq-src = "={CRATE_VERSION}"\n\n[workspace]\n'
    )
    fetched = subprocess.run([cargo, "fetch", "--quiet"], cwd=project, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if fetched.returncode:
        raise LibzmqError(f"cargo could not fetch {CRATE}:\n{fetched.stdout}")
    home = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo"))
    try:
        return next(home.glob(f"registry/cache/*/{CRATE}.crate")).read_bytes()
    except StopIteration:
        raise LibzmqError(f"cargo fetched {CRATE} but left no archive below {home}/registry/cache") from None


def build(source: Path, prefix: Path, compiler: list[str], archiver: list[str], jobs: int) -> None:
    """Compile ``source`` and install library, headers and licence below ``prefix``.

    Args:
        compiler: the C++ compiler and its target options.
        archiver: ``ar``, able to write archives without dates.
    """
    vendor, objects = source / "vendor", prefix / "obj"
    shutil.rmtree(prefix, ignore_errors=True)
    for directory in (objects, prefix / "include", prefix / "lib"):
        directory.mkdir(parents=True)
    (objects / "platform.hpp").touch()
    flags = ["-O2", "-g0", "-fPIC", "-std=c++11", "-w", f"-ffile-prefix-map={source}=libzmq"]
    flags += [f"-D{name}" if "=" in name else f"-D{name}=1" for name in _DEFINES]
    flags += [f"-I{objects}", f"-I{vendor / 'include'}", f"-I{vendor / 'src'}"]
    files = sorted(file for file in (vendor / "src").glob("*.cpp") if not file.name.startswith(_LEFT_OUT))

    def compile_one(file: Path) -> Path:
        target = objects / f"{file.stem}.o"
        subprocess.run([*compiler, *flags, "-c", str(file), "-o", str(target)], check=True)
        return target

    with ThreadPoolExecutor(jobs) as pool:
        compiled = list(pool.map(compile_one, files))
    subprocess.run([*archiver, "rcsD", str(prefix / "lib" / "libzmq.a"), *map(str, compiled)], check=True)
    for header in ("zmq.h", "zmq_utils.h"):
        shutil.copy(vendor / "include" / header, prefix / "include")
    shutil.copy(vendor / "LICENSE", prefix / "LICENSE")
    shutil.rmtree(objects)
