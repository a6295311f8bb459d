"""The wheel at work where nothing is installed: an engine's prefix is stored, and hit from the store alone."""

import json
import pathlib
import subprocess
import sys

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
    assert done.returncode == 0, done.stdout[-30000:]
    reports = [line for line in done.stdout.splitlines() if line.startswith('{"cold"')]
    assert len(reports) == 1, done.stdout[-30000:]
    report = json.loads(reports[0])
    (cold_hit, cold), (warm_hit, warm) = report["cold"], report["warm"]
    assert cold_hit == 0 and warm_hit >= 1024, report
    assert cold == warm, "tokens after a load differ"
    return report


def test_programs_store_and_load_on_an_older_distribution(old_root):
    """Without Python: the benchmark's stand-in engine, and daemons that it starts, all from the wheel."""
    programs = "/opt/mooncake/mooncake_sidecar/bin"
    script = """set -e
mount -t proc proc "$1/proc"; mount -t tmpfs tmp "$1/tmp"; mount --rbind /dev "$1/dev"
exec chroot "$@"
"""
    done = subprocess.run(
        ["unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh", old_root, "env", "-i", "HOME=/root",
         f"{programs}/mooncake-bench", "datapath", "--build", f"wheel={programs}", "--rounds", "1", "--warm", "2", "--only", "4MB/"],
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    measured = {line.split()[0] for line in done.stdout.splitlines() if " wheel " in line}
    assert {"store", "first", "warm", "restore"} <= measured, done.stdout


def test_pip_install_and_one_flag(new_root, model):
    script = """set -e
root=$1; shift
mkdir -p "$root/vllm" "$root/model" "$root/tests"
mount --bind "$1" "$root/vllm"; mount --bind "$2" "$root/model"; mount --bind "$3" "$root/tests"; shift 3
mount -t proc proc "$root/proc"; mount --rbind /dev "$root/dev"; mount --rbind /sys "$root/sys"
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
