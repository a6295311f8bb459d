"""Builds the wheel: shim and daemons, for x86-64 Linux with glibc 2.17 or newer.

    python deploy/wheel/build.py [--output build/dist] [--jobs N]

The daemons are compiled by Zig's clang against the symbols of that glibc and
link libzmq and the C++ library statically, so the wheel needs nothing of the
machine it is installed on but glibc. Two builds of the same source
give the same bytes. Everything is fetched by pinned version and digest; what is
fetched or built stays below build/wheel.
"""

import argparse
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import libzmq
import licences

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "wheel"
COMMANDS = ("mooncake-lookupd", "mooncake-worker", "mooncake-conductor", "mooncake-bench")
GLIBC = (2, 17)
PLATFORM_TAG = f"manylinux_{GLIBC[0]}_{GLIBC[1]}_x86_64"
TARGET = f"x86_64-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"
# Dates inside the wheel when SOURCE_DATE_EPOCH says nothing: zip knows no year before 1980.
_EPOCH = "315532800"


def version() -> str:
    """The one version of shim, daemons and wheel: ``__version__`` of the package."""
    text = (ROOT / "pyshim" / "mooncake_sidecar" / "__init__.py").read_text()
    found = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if found is None:
        raise SystemExit("wheel: pyshim/mooncake_sidecar/__init__.py has no line __version__ = \"...\"")
    return found[1]


def tools() -> Path:
    """The interpreter of an environment with the pinned compiler and packaging tools."""
    wanted = Path(__file__).with_name("requirements.txt")
    place = WORK / "tools"
    python, stamp = place / "bin" / "python", place / "stamp"
    digest = hashlib.sha256(wanted.read_bytes()).hexdigest()
    if stamp.is_file() and stamp.read_text() == digest:
        return python
    say("fetching the compiler and packaging tools (about 90 MB, once)")
    shutil.rmtree(place, ignore_errors=True)
    venv.create(place, with_pip=True)
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:", "-r", wanted)
    stamp.write_text(digest)
    return python


def build_libzmq(python: Path, jobs: int) -> Path:
    """The prefix of the static libzmq, built again only when what it is built by or from changed."""
    prefix, stamp = WORK / "libzmq", WORK / "libzmq.stamp"
    recipe = [Path(libzmq.__file__), Path(__file__), Path(__file__).with_name("requirements.txt")]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in recipe)).hexdigest()
    if not (stamp.is_file() and stamp.read_text() == digest):
        say(f"building libzmq {libzmq.VERSION}")
        try:
            source = libzmq.fetch(WORK / "source")
        except libzmq.LibzmqError as error:
            raise SystemExit(f"wheel: {error}") from None
        libzmq.build(source, prefix, [*zig(python), "c++", "-target", TARGET], [*zig(python), "ar"], jobs)
        stamp.write_text(digest)
    return prefix


def zig(python: Path) -> list[str]:
    """The compiler's command, its caches kept out of the home directory."""
    os.environ["ZIG_GLOBAL_CACHE_DIR"] = os.environ["ZIG_LOCAL_CACHE_DIR"] = str(WORK / "zig-cache")
    return [str(compiler_directory(python) / "zig")]


def build_daemons(python: Path, prefix: Path, to: Path) -> None:
    """Compile the commands for the target, without paths, symbols or dates."""
    compiler = " ".join(zig(python))
    environment = {
        **os.environ,
        "CGO_ENABLED": "1",
        "GOOS": "linux",
        "GOARCH": "amd64",
        "CC": str(Path(__file__).with_name("zig-cc")),
        "CXX": f"{compiler} c++ -target {TARGET}",
        "CGO_CFLAGS": "-O2 -g0",
        "CGO_LDFLAGS": "",
        "PKG_CONFIG": str(Path(__file__).with_name("pkg-config")),
        "MOONCAKE_SIDECAR_LIBZMQ": str(prefix),
        "MOONCAKE_SIDECAR_ZIG": compiler,
        "MOONCAKE_SIDECAR_TARGET": TARGET,
    }
    flags = f"-s -w -buildid= -linkmode=external -X {module()}/internal/version.Version={version()}"
    for command in COMMANDS:
        say(f"building {command}")
        run("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", flags, "-o", to / command, f"./cmd/{command}", env=environment)


def module() -> str:
    """The Go module's path."""
    return (ROOT / "go.mod").read_text().split()[1]


def stage(python: Path, prefix: Path) -> Path:
    """A source tree of the Python package with the daemons and the licences in it."""
    place = WORK / "stage"
    shutil.rmtree(place, ignore_errors=True)
    package = place / "mooncake_sidecar"
    shutil.copytree(ROOT / "pyshim" / "mooncake_sidecar", package, ignore=shutil.ignore_patterns("__pycache__", "bin"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / "pyshim" / name, place)
    (package / "bin").mkdir()
    build_daemons(python, prefix, package / "bin")
    shutil.copy(ROOT / "LICENSE", place)
    licences.collect(place / "LICENSES", ROOT, [f"./cmd/{c}" for c in COMMANDS], prefix / "LICENSE", compiler_directory(python) / "lib")
    (place / "setup.cfg").write_text(f"[bdist_wheel]\nplat_name = {PLATFORM_TAG}\npython_tag = py3\n")
    for path in place.rglob("*"):  # the same whatever umask it was copied under
        path.chmod(0o755 if path.is_dir() or path.parent.name == "bin" else 0o644)
    return place


def compiler_directory(python: Path) -> Path:
    """Where the compiler is, and in ``lib`` the sources of the C++ library that it links in."""
    code = "import os, ziglang; print(os.path.dirname(ziglang.__file__))"
    return Path(subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip())


def build_wheel(python: Path, place: Path, output: Path) -> Path:
    """Pack the staged tree."""
    output.mkdir(parents=True, exist_ok=True)
    wheel = output / f"mooncake_sidecar-{version()}-py3-none-{PLATFORM_TAG}.whl"
    wheel.unlink(missing_ok=True)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH", _EPOCH)}
    run(python, "-m", "build", "--wheel", "--no-isolation", "--outdir", output, place, env=environment, quiet=True)
    if not wheel.is_file():
        raise SystemExit(f"wheel: no {wheel.name} in {output}: {sorted(p.name for p in output.iterdir())}")
    return wheel


def run(*command: object, env: dict[str, str] | None = None, quiet: bool = False) -> None:
    """Run a command in the repository; its failure ends the build, with its output."""
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE if quiet else None,
                          stderr=subprocess.STDOUT if quiet else None)  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{done.stdout or ''}wheel: {' '.join(words[:4])} ... failed with exit code {done.returncode}")


def say(text: str) -> None:
    """Tell what takes time."""
    print(f"wheel: {text}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="build the wheel with shim and daemons")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "dist")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilers at a time")
    options = parser.parse_args()
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        sys.exit(f"wheel: built on x86-64 Linux only, this is {platform.system()} {platform.machine()}")
    python = tools()
    prefix = build_libzmq(python, options.jobs)
    wheel = build_wheel(python, stage(python, prefix), options.output.resolve())
    run(python, "-m", "auditwheel", "show", wheel)
    say(f"{os.path.relpath(wheel)}: {wheel.stat().st_size / 1e6:.1f} MB, SHA-256 {hashlib.sha256(wheel.read_bytes()).hexdigest()}")


if __name__ == "__main__":
    main()
