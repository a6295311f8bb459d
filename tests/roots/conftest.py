"""Roots of other distributions, made from their packages and kept in build/roots.

Needs root, mmdebstrap and systemd-nspawn, which are installed if they are
missing, and a mirror of Debian's packages.
"""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
ROOTS = REPOSITORY / "build" / "roots"
# glibc 2.31, and no Python that the shim supports: the daemons only. Then vLLM's Python, and systemd.
PACKAGES = {
    "bullseye": ["ca-certificates"],
    "bookworm": ["python3", "python3-venv", "libnuma1", "libgomp1", "systemd", "systemd-sysv", "dbus"],
}


def run(*command, **options) -> subprocess.CompletedProcess:
    return subprocess.run([str(word) for word in command], check=True, text=True, **options)


@pytest.fixture(scope="session", autouse=True)
def tools():
    if os.getuid() != 0:
        pytest.skip("making a root needs root")
    missing = {"mmdebstrap": "mmdebstrap", "systemd-nspawn": "systemd-container"}
    packages = [package for tool, package in missing.items() if shutil.which(tool) is None]
    if packages:
        run("apt-get", "install", "-y", "--no-install-recommends", *packages, stdout=subprocess.DEVNULL)


def made(suite: str) -> pathlib.Path:
    root = ROOTS / suite
    if not (root / ".made").exists():
        shutil.rmtree(root, ignore_errors=True)
        ROOTS.mkdir(parents=True, exist_ok=True)
        run("mmdebstrap", "--variant=minbase", f"--include={','.join(PACKAGES[suite])}", suite, root)
        (root / ".made").touch()
    assert not any((root / path).exists() for path in ("usr/bin/gcc", "usr/lib/x86_64-linux-gnu/libzmq.so.5"))
    return root


@pytest.fixture(scope="session")
def wheel(tmp_path_factory) -> pathlib.Path:
    output = tmp_path_factory.mktemp("dist")
    run(sys.executable, REPOSITORY / "deploy" / "wheel" / "build.py", "--output", output)
    return next(output.glob("*.whl"))


@pytest.fixture(scope="session")
def old_root(wheel) -> pathlib.Path:
    """Debian 11 with the wheel's programs in /opt/mooncake."""
    root = made("bullseye")
    shutil.rmtree(root / "opt" / "mooncake", ignore_errors=True)
    shutil.unpack_archive(wheel, root / "opt" / "mooncake", "zip")
    for program in (root / "opt" / "mooncake" / "mooncake_sidecar" / "bin").iterdir():
        program.chmod(0o755)
    return root


@pytest.fixture(scope="session")
def new_root(wheel) -> pathlib.Path:
    """Debian 12 with the wheel installed by pip in /opt/mooncake, its commands in /usr/bin, and the units."""
    root = made("bookworm")
    wheels = root / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    shutil.rmtree(root / "opt" / "mooncake", ignore_errors=True)
    wheels.mkdir()
    shutil.copy(wheel, wheels)
    needs = ["msgspec>=0.18"]
    download = ["pip", "download", "--quiet", "--only-binary", ":all:", "--python-version", "3.11", "--dest", wheels]
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode == 0:
        run(sys.executable, "-m", *download, *needs)
    else:
        run("python3", "-m", *download, *needs)
    inside = (
        "python3 -m venv /opt/mooncake && "
        "/opt/mooncake/bin/python -m pip install --quiet --no-index --find-links /wheels mooncake-sidecar && "
        "ln -sf /opt/mooncake/bin/mooncake-* /usr/bin/"
    )
    run("chroot", root, "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "sh", "-c", inside)
    return root


@pytest.fixture(scope="session")
def model() -> pathlib.Path:
    sys.path.insert(0, str(REPOSITORY / "tests"))
    from harness import checkpoint

    place = REPOSITORY / "build" / "checkpoint"
    if not (place / "config.json").exists():
        checkpoint.build(place)
    return place
