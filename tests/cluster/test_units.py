"""The cluster's systemd units, as systemd's own tools judge them."""

import pathlib
import re
import shutil
import subprocess

import pytest
from harness.cluster import PROGRAMS
from harness.engine import REPOSITORY

UNITS = REPOSITORY / "deploy" / "cluster"
SERVICES = ("mooncake-master.service", "mooncake-store@1.service", "mooncake-store@2.service", "mooncake-store@3.service")
# systemd-analyze's exposure, of 10; "SAFE" ends at 2.
MOST_EXPOSED = 1.5

pytestmark = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")


@pytest.fixture(scope="module")
def units(tmp_path_factory) -> pathlib.Path:
    """The units as an administrator would have them, with programs that exist, and lookupd with its drop-in."""
    place = tmp_path_factory.mktemp("units")
    shutil.copy(UNITS / "mooncake-cluster.target", place)
    for name in SERVICES:
        text = (UNITS / re.sub(r"@\d", "@", name)).read_text()
        (place / name).write_text(text.replace("/opt/mooncake/bin/", f"{PROGRAMS}/"))
    systemd = REPOSITORY / "deploy" / "systemd"
    shutil.copy(systemd / "mooncake-lookupd.socket", place)
    text = (systemd / "mooncake-lookupd.service").read_text().replace("/usr/bin/", f"{REPOSITORY}/bin/", 1)
    (place / "mooncake-lookupd.service").write_text(text)
    dropins = place / "mooncake-lookupd.service.d"
    dropins.mkdir()
    shutil.copy(UNITS / "lookupd.conf", dropins / "cluster.conf")
    return place


def analyze(units: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(["systemd-analyze", *arguments], cwd=units, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def complaints(checked: subprocess.CompletedProcess) -> list[str]:
    return [line for line in checked.stdout.splitlines() if "mooncake" in line]


def test_units_are_clean(units):
    names = [f"./{path.name}" for path in units.iterdir() if path.is_file()]
    assert len(names) == 7
    checked = analyze(units, "verify", "--man=no", *names)
    assert checked.returncode == 0 and not complaints(checked), checked.stdout


def test_the_target_brings_all_of_them(units):
    wanted = re.search(r"^Wants=(.*)$", (units / "mooncake-cluster.target").read_text(), re.MULTILINE)
    assert tuple(wanted[1].split()) == SERVICES


def test_a_fault_would_be_found(units, tmp_path):
    broken = (units / "mooncake-master.service").read_text().replace("Restart=always", "Restart=sometimes")
    (tmp_path / "mooncake-master.service").write_text(broken)
    assert "sometimes" in analyze(tmp_path, "verify", "--man=no", "./mooncake-master.service").stdout


@pytest.mark.parametrize("service", [*SERVICES[:2], "mooncake-lookupd.service"])
def test_units_are_hardened(units, service):
    checked = analyze(units, "security", "--offline=true", "--no-pager", f"./{service}")
    exposure = re.search(r"exposure level for \S+: ([0-9.]+)", checked.stdout)
    assert exposure, checked.stdout
    assert float(exposure[1]) <= MOST_EXPOSED, checked.stdout


@pytest.mark.parametrize("service", SERVICES[:2])
def test_only_loopback_may_reach_them(units, service):
    text = (units / service).read_text()
    assert re.findall(r"^IPAddress\w+=.*$", text, re.MULTILINE) == ["IPAddressDeny=any", "IPAddressAllow=localhost"]
