"""Collects the licence texts of everything that is linked into the daemons."""

import json
import re
import shutil
import subprocess
from pathlib import Path

_TEXTS = re.compile(r"^(licen[cs]e|copying|notice|patents)([.\-].*)?$", re.IGNORECASE)

_INDEX = """Licences of what is linked into the daemons of this package

mooncake-sidecar itself is under the Apache License 2.0.

libzmq 4.3.5 is under the Mozilla Public License 2.0 (libzmq/LICENSE). Its source is unmodified and is
published at https://github.com/zeromq/libzmq, tag v4.3.5.

libc++, libc++abi and libunwind of LLVM are under the Apache License 2.0 with LLVM exceptions.

The Go standard library and runtime: see go/LICENSE. Go modules, each with its own texts:

"""


class MissingLicence(RuntimeError):
    """Something is linked in whose licence text is not to be found."""


def collect(to: Path, root: Path, packages: list[str], libzmq: Path, compiler: Path) -> None:
    """Write the texts below ``to``, one directory for each component, and an index.

    Args:
        packages: the Go commands.
        compiler: where the compiler has the C++ library's sources.
    """
    to.mkdir(parents=True)
    _copy(libzmq, to / "libzmq" / "LICENSE")
    for name in ("libcxx", "libcxxabi", "libunwind"):
        _copy(compiler / name / "LICENSE.TXT", to / name / "LICENSE.TXT")
    goroot = subprocess.run(["go", "env", "GOROOT"], cwd=root, check=True, capture_output=True, text=True).stdout.strip()
    _copy(Path(goroot) / "LICENSE", to / "go" / "LICENSE")
    index = _INDEX
    for path, version, directory in _modules(root, packages):
        texts = [file for file in sorted(directory.iterdir()) if file.is_file() and _TEXTS.match(file.name)]
        if not texts:
            raise MissingLicence(f"{path} {version} has no licence file in {directory}")
        for text in texts:
            _copy(text, to / "modules" / path.replace("/", "_") / text.name)
        index += f"  {path} {version}\n"
    (to / "INDEX.txt").write_text(index)


def _modules(root: Path, packages: list[str]) -> list[tuple[str, str, Path]]:
    """(path, version, directory) of every foreign module that the commands link."""
    template = '{{with .Module}}{{if not .Main}}{"path":{{printf "%q" .Path}},"version":{{printf "%q" .Version}},"dir":{{printf "%q" .Dir}}}{{end}}{{end}}'
    listed = subprocess.run(["go", "list", "-deps", "-f", template, *packages], cwd=root, check=True, capture_output=True, text=True)
    found = {line for line in listed.stdout.splitlines() if line}
    entries = [json.loads(line) for line in sorted(found)]
    return [(entry["path"], entry["version"], Path(entry["dir"])) for entry in entries]


def _copy(source: Path, target: Path) -> None:
    if not source.is_file():
        raise MissingLicence(f"{source} is not there")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
