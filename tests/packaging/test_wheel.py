"""The wheel: the same bytes twice, nothing asked of the machine, programs that the shim finds and starts."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import venv
import zipfile

import msgspec
import pytest
from conftest import REPOSITORY, build_wheel

PROGRAMS = ("mooncake-lookupd", "mooncake-worker", "mooncake-conductor", "mooncake-bench")
# What every glibc has. libstdc++, libzmq and their friends are in the programs.
ALLOWED = {"libc.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libm.so.6", "libresolv.so.2", "ld-linux-x86-64.so.2"}


def declared_version() -> str:
    text = (REPOSITORY / "pyshim" / "mooncake_sidecar" / "__init__.py").read_text()
    return re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)[1]


@pytest.fixture(scope="session")
def unpacked(wheel, tmp_path_factory) -> pathlib.Path:
    place = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(place)
    return place


@pytest.fixture(scope="session")
def bare(wheel, tmp_path_factory) -> pathlib.Path:
    """An environment that holds nothing but the wheel."""
    place = tmp_path_factory.mktemp("bare")
    venv.create(place, with_pip=True, symlinks=True)
    pip = [place / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", wheel]
    subprocess.run(pip, check=True)
    return place


def poor(bare: pathlib.Path, **more: str) -> dict[str, str]:
    """An environment for processes with the bare environment's commands and no others: no compiler, no tools."""
    return {"PATH": str(bare / "bin"), "HOME": "/nonexistent", **more}


def test_two_builds_are_equal(wheel, tmp_path):
    again = build_wheel(tmp_path)
    assert again.name == wheel.name == f"mooncake_sidecar-{declared_version()}-py3-none-manylinux_2_17_x86_64.whl"
    assert again.read_bytes() == wheel.read_bytes()


def test_finds_gpus_by_nvml(unpacked, tmp_path):
    """Zig's linker binds all functions at the start, which NVML's binding by go-nvml alone does not survive."""
    fake = REPOSITORY / "internal" / "gpu" / "testdata" / "fake_nvml.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "libnvidia-ml.so.1", fake], check=True)
    command = [unpacked / "mooncake_sidecar" / "bin" / "mooncake-worker", "--device", "cuda-1", "topology", "--json"]
    environment = {"PATH": "/nonexistent", "LD_LIBRARY_PATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": "2,MIG-00000007-bbbb-3"}
    os.chmod(command[0], 0o755)  # zipfile forgets modes
    answer = json.loads(subprocess.run(command, check=True, capture_output=True, env=environment).stdout)
    assert [gpu["uuid"] for gpu in answer["gpus"]] == [f"GPU-0000000{i}-aaaa" for i in range(8)]
    assert (answer["worker"]["gpu"], answer["worker"]["mig"]) == ("GPU7", "MIG-00000007-bbbb-3")


@pytest.mark.parametrize("program", PROGRAMS)
def test_needs_glibc_only(unpacked, program):
    path = unpacked / "mooncake_sidecar" / "bin" / program
    dynamic = subprocess.run(["readelf", "-dVW", path], check=True, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}).stdout
    needed = set(re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic))
    versions = {tuple(map(int, v.split("."))) for v in re.findall(r"Name: GLIBC_([0-9.]+)", dynamic)}
    assert needed and needed <= ALLOWED
    assert versions and max(versions) <= (2, 17)
    assert "RPATH" not in dynamic and "RUNPATH" not in dynamic
    assert not re.search(rb"/(root|home|work|tmp)/[\w.-]+/", path.read_bytes()), "a path of the machine that built it"


def test_carries_the_licences(unpacked):
    (info,) = unpacked.glob("*.dist-info")
    texts = {str(path.relative_to(info / "licenses")) for path in (info / "licenses").rglob("*") if path.is_file()}
    assert {"LICENSE", "LICENSES/INDEX.txt", "LICENSES/libzmq/LICENSE", "LICENSES/libcxx/LICENSE.TXT", "LICENSES/go/LICENSE"} <= texts
    assert "Mozilla Public License" in (info / "licenses/LICENSES/libzmq/LICENSE").read_text()
    index = (info / "licenses/LICENSES/INDEX.txt").read_text()
    for module in ("github.com/pebbe/zmq4", "google.golang.org/grpc"):
        assert module in index


@pytest.mark.parametrize("program", PROGRAMS)
def test_commands_run_and_agree_on_the_version(bare, program):
    told = subprocess.run([bare / "bin" / program, "--version"], check=True, capture_output=True, text=True, env=poor(bare)).stdout
    assert declared_version() in told.split()
    shim = subprocess.run(
        [bare / "bin" / "python", "-c", "import mooncake_sidecar as m; print(m.__version__)"],
        check=True, capture_output=True, text=True, env=poor(bare),
    )  # fmt: skip
    assert shim.stdout.strip() == declared_version()


def test_the_shim_finds_and_starts_its_own_daemons(bare, runtime_dir):
    code = (
        "import sys, threading\n"
        "from mooncake_sidecar import config, daemons\n"
        "d = sys.argv[1]\n"
        "s = config.parse({'runtime_dir': d, 'store_bytes': '16MiB', 'linger_s': 60})\n"
        "wanted = [daemons.lookupd(d, s), daemons.worker(d, 'host-0', s)]\n"
        "daemons.ensure(wanted, d, s, 60, threading.Event())\n"
        "for daemon in wanted:\n"
        "    w = daemons.probe(daemon.socket, 60)\n"
        "    print(w.pid, w.daemon, w.version, daemons.find_binary(daemon.program, s))\n"
    )
    # The packages that the shim depends on come from the environment of the tests, as files: no installation of the shim
    # itself is seen through it.
    libraries = pathlib.Path(msgspec.__file__).parent.parent
    told = subprocess.run(
        [bare / "bin" / "python", "-c", code, runtime_dir], capture_output=True, text=True, env=poor(bare, PYTHONPATH=str(libraries))
    )
    assert told.returncode == 0, told.stderr
    lines = [line.split(maxsplit=3) for line in told.stdout.splitlines()]
    try:
        assert [line[1:3] for line in lines] == [[name, declared_version()] for name in PROGRAMS[:2]]
        for line in lines:
            assert pathlib.Path(line[3]).is_relative_to(bare)
            assert pathlib.Path(f"/proc/{line[0]}/exe").resolve().is_relative_to(bare.resolve())
    finally:
        for line in reversed(lines):
            os.kill(int(line[0]), signal.SIGKILL)


@pytest.fixture
def runtime_dir(tmp_path_factory):
    import shutil
    import tempfile

    place = tempfile.mkdtemp(prefix="mw")
    os.chmod(place, 0o700)
    yield place
    shutil.rmtree(place, ignore_errors=True)


def test_the_python_that_runs_the_tests_is_another_one(bare):
    """The bare environment must not see the packages of this one, or the tests above show nothing."""
    code = "import importlib.util as u; print([m for m in ('vllm', 'torch', 'zmq', 'msgspec') if u.find_spec(m)])"
    seen = subprocess.run([bare / "bin" / "python", "-c", code], check=True, capture_output=True, text=True, env=poor(bare)).stdout
    assert seen.strip() == "[]", sys.prefix
