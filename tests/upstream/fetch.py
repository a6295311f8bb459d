"""Brings the tests of vLLM's source distribution to build/upstream, for the scripts beside this one.

    fetch.py            prints the directory that holds tests/
    fetch.py --check    the same, fails instead of downloading

The archive is what the package index that pip is configured for offers; only
the bytes with the digest below are used. Nothing of it is committed.
"""

import argparse
import hashlib
import http.client
import os
import re
import subprocess
import sys
import tarfile
import time
import urllib.parse
import urllib.request
from pathlib import Path

VERSION = "0.32.0"
SHA256 = "d2c957d5eee3d0985012151315ddc62cbe0cd368fc96a5fc3510438d9dddf2ad"
TARGET = Path(__file__).resolve().parents[2] / "build" / "upstream"
TIMEOUT_S = 120
PAUSES_S = (1, 4, 15)


# Asked of the interpreter that made the virtual environment, which has a pip where the environment has none.
_ASK_PIP = """
from pip._internal.configuration import Configuration
from pip._internal.models.index import PyPI
settings = Configuration(isolated=False)
settings.load()
print(dict(settings.items()).get("global.index-url", PyPI.simple_url))
"""


def get(url: str) -> bytes:
    """What is there. A network that fails for a moment is asked again, as pip does."""
    for pause in PAUSES_S:
        try:
            return _get(url)
        except (OSError, http.client.HTTPException) as error:
            sys.stderr.write(f"fetch: {url}: {error}; again in {pause} s\n")
            time.sleep(pause)
    return _get(url)


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
        return response.read()


def package_index() -> str:
    """The index that pip asks: as configured, else its own default."""
    if index := os.environ.get("PIP_INDEX_URL"):
        return index
    python = Path(sys.base_prefix, "bin", "python3")
    asked = subprocess.run([python, "-c", _ASK_PIP], capture_output=True, text=True)
    if asked.returncode:
        raise SystemExit(f"fetch: {python} has no pip to say which package index to ask; set PIP_INDEX_URL")
    return asked.stdout.strip()


def archive_url(index: str) -> str:
    """The archive's address on the index's page of the project."""
    page_url = index.rstrip("/") + "/vllm/"
    links = re.findall(r'href="([^"]+)"', get(page_url).decode())
    name = f"vllm-{VERSION}.tar.gz"
    for link in links:
        if urllib.parse.urlparse(link).path.endswith("/" + name):
            return urllib.parse.urljoin(page_url, link)
    raise SystemExit(f"fetch: {page_url} does not offer {name}; set PIP_INDEX_URL to an index that does")


def download(to: Path) -> None:
    """Fetch the archive, and keep it only if it is the one we know."""
    data = get(archive_url(package_index()))
    found = hashlib.sha256(data).hexdigest()
    if found != SHA256:
        raise SystemExit(f"fetch: the archive's digest is {found}, wanted {SHA256}: not used")
    to.write_bytes(data)


def unpack(archive: Path, to: Path) -> None:
    """Take tests/ and the pytest settings out of the archive."""
    wanted = (f"vllm-{VERSION}/tests/", f"vllm-{VERSION}/pyproject.toml")
    with tarfile.open(archive) as tar:
        tar.extractall(to, [m for m in tar.getmembers() if m.name.startswith(wanted)], filter="data")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    root = TARGET / f"vllm-{VERSION}"
    done = TARGET / f"vllm-{VERSION}.done"
    if not done.exists():
        if arguments.check:
            raise SystemExit(f"fetch: {root} is not there; run make test-upstream")
        TARGET.mkdir(parents=True, exist_ok=True)
        archive = TARGET / f"vllm-{VERSION}.tar.gz"
        download(archive)
        unpack(archive, TARGET)
        archive.unlink()
        done.touch()
    sys.stdout.write(f"{root}\n")


if __name__ == "__main__":
    main()
