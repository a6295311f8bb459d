"""The wheel at work where nothing is installed: an engine's prefix is stored, and hit from the store alone."""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import pytest

HERE = pathlib.Path(__file__).parent
PATIENCE_S = 600
ENGINE = {
    "HOME": "/root",
    "PYTHONDONTWRITEBYTECODE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
}


def words(environment: dict[str, str]) -> list[str]:
    return [f"{key}={value}" for key, value in environment.items()]


def judge(done: subprocess.CompletedProcess) -> dict:
    assert done.returncode == 0, done.stdout[-6000:]
    report = json.loads(done.stdout.strip().splitlines()[-1])
    (cold_hit, cold), (warm_hit, warm) = report["cold"], report["warm"]
    assert cold_hit == 0 and warm_hit >= 1024, report
    assert cold == warm, "tokens after a load differ"
    return report


@pytest.fixture
def runtime_dir():
    place = tempfile.mkdtemp(prefix="mr")
    yield pathlib.Path(place)
    shutil.rmtree(place, ignore_errors=True)


def test_daemons_of_an_older_distribution_serve_an_engine(old_root, model, runtime_dir):
    programs = "/opt/mooncake/mooncake_sidecar/bin"
    daemons = []
    script = 'mkdir -p "$1$2" && mount --bind "$2" "$1$2" && mount -t proc proc "$1/proc" && shift 2 && exec chroot "$@"'
    try:
        for program, *flags in (("mooncake-lookupd", "--store-bytes", "256MiB"), ("mooncake-worker", "--device", "host-0")):
            daemons.append(
                subprocess.Popen(
                    ["unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh", old_root, runtime_dir,
                     old_root, "env", "-i", f"{programs}/{program}", "--runtime-dir", runtime_dir, *flags]
                )  # fmt: skip
            )
        told = subprocess.run(["chroot", old_root, f"{programs}/mooncake-lookupd", "--version"], check=True, capture_output=True, text=True)
        assert "version" in told.stdout
        extra = json.dumps({"runtime_dir": str(runtime_dir), "autostart": False})
        done = subprocess.run(
            ["env", *words(ENGINE), sys.executable, HERE / "inside.py", model, extra],
            text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE_S,
        )  # fmt: skip
        judge(done)
    finally:
        for daemon in daemons:
            daemon.kill()
            daemon.wait()


def test_pip_install_and_one_flag(new_root, model):
    script = """set -e
root=$1; shift
mkdir -p "$root/vllm" "$root/model" "$root/tests"
mount --bind "$1" "$root/vllm"; mount --bind "$2" "$root/model"; mount --bind "$3" "$root/tests"; shift 3
mount -t proc proc "$root/proc"; mount --rbind /dev "$root/dev"
exec chroot "$root" env -i PATH=/usr/bin:/bin PYTHONPATH=/opt/mooncake/lib/python3.11/site-packages:/vllm "$@"
"""
    packages = pathlib.Path(sys.prefix, "lib", f"python{sys.version_info[0]}.{sys.version_info[1]}", "site-packages")
    if packages.parent.name != "python3.11":
        pytest.skip("Debian 12's Python is 3.11: vLLM's packages of another one do not load there")
    done = subprocess.run(
        ["unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh", new_root, packages, model, HERE,
         *words(ENGINE), "/opt/mooncake/bin/python", "-P", "/tests/inside.py", "/model", '{"store_bytes": "256MiB", "linger_s": 1}'],
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE_S,
    )  # fmt: skip
    report = judge(done)
    assert report["shim"].startswith("/opt/mooncake/") and report["compiler"] is None
