"""The systemd units, as systemd's own tools judge them."""

import pathlib
import re
import shutil
import subprocess

import pytest
from conftest import REPOSITORY

UNITS = REPOSITORY / "deploy" / "systemd"
INSTANCES = {"mooncake-worker@.service": "mooncake-worker@host-0.service", "mooncake-worker@.socket": "mooncake-worker@host-0.socket"}
# systemd-analyze's exposure, of 10; "SAFE" ends at 2. The conductor's clients are on the network.
MOST_EXPOSED = {"mooncake-conductor.service": 1.3, "mooncake-lookupd.service": 1.0, "mooncake-worker@host-0.service": 1.0}


@pytest.fixture(scope="module")
def units(tmp_path_factory) -> pathlib.Path:
    """The units as an administrator would have them, with programs that exist."""
    place = tmp_path_factory.mktemp("units")
    for source in [*UNITS.glob("*.service"), *UNITS.glob("*.socket")]:
        text = source.read_text()
        text = re.sub(r"^ExecStart=/usr/bin/", f"ExecStart={REPOSITORY}/bin/", text, flags=re.MULTILINE)
        (place / INSTANCES.get(source.name, source.name)).write_text(text)
    return place


def analyze(units: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess:
    assert shutil.which("systemd-analyze"), "scripts/setup.sh --with-peers installs it"
    return subprocess.run(["systemd-analyze", *arguments], cwd=units, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def test_units_are_clean(units):
    names = sorted(path.name for path in units.iterdir())
    assert len(names) == 5
    checked = analyze(units, "verify", "--man=no", *(f"./{name}" for name in names))
    ours = [line for line in checked.stdout.splitlines() if "mooncake" in line]
    assert checked.returncode == 0 and not ours, checked.stdout


def test_a_fault_would_be_found(units, tmp_path):
    broken = (units / "mooncake-lookupd.service").read_text().replace("Type=notify", "Typo=notify")
    (tmp_path / "mooncake-broken.service").write_text(broken)
    assert "Typo" in analyze(tmp_path, "verify", "--man=no", "./mooncake-broken.service").stdout


@pytest.mark.parametrize("service", MOST_EXPOSED)
def test_units_are_hardened(units, service):
    checked = analyze(units, "security", "--offline=true", "--no-pager", f"./{service}")
    exposure = re.search(r"exposure level for \S+: ([0-9.]+)", checked.stdout)
    assert exposure, checked.stdout
    assert float(exposure[1]) <= MOST_EXPOSED[service], checked.stdout
