"""What tells the files of one model from those of another that was put at the same place.

Files are looked at, never read, and never fetched: of a name on the hub this is
the snapshot in the local cache that its revision stands for, which is there once
the engine has loaded its weights.
"""

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from typing import Any

from mooncake_sidecar.naming import UnnameableError

# Endings of what decides a model's numbers: weights in any format, their
# configuration and quantisation, code that comes with them.
_MATTER = (
    ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".tensors", ".npz", ".npy",
    ".json", ".yaml", ".yml", ".py",
)  # fmt: skip
_MAX_ENTRIES = 10_000
"""Of a directory and those in it; a checkpoint has some hundred."""


def identity(model: str, revision: str | None = None, caches: Iterable[str] = ()) -> str:
    """The state of a model's files; empty if they are not on this machine where the hub's cache would have them.

    Of a directory and of a file: a digest of names, sizes and modification times.
    Of a name on the hub: the commits that its revision stands for in the caches,
    whose content the hub never changes.

    Args:
        revision: as vLLM has it; one that it has resolved (``huggingface_hub.ResolvedRevision``) names the commit that
            was loaded, whatever the cache's reference says by now.
        caches: directories of the hub's cache, other than the usual one.

    Raises:
        UnnameableError: there are too many files.
    """
    if os.path.isdir(model):
        return _digest(sorted(_files(model)))
    if os.path.isfile(model):
        return _digest([(os.path.basename(model), os.stat(model))])
    if commit := getattr(revision, "resolved", None):
        return str(commit)
    places = dict.fromkeys([*filter(None, caches), *_usual_cache()])
    commits = (_commit(place, _repository(model), revision or "main") for place in places)
    return " ".join(dict.fromkeys(filter(None, commits)))


def asked_for(revision: str | None) -> str:
    """A revision as it was configured, empty if it was not.

    vLLM puts another kind of string in its place where it could resolve it: one
    that no encoder takes, and that says "main" where nothing was said.
    """
    return str(getattr(revision, "initial", revision) or "")


def _digest(files: Iterable[tuple[str, os.stat_result]]) -> str:
    digest = hashlib.sha256()
    for name, info in files:
        digest.update(f"{name}\0{info.st_size}\0{info.st_mtime_ns}\0".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _files(top: str) -> Iterator[tuple[str, os.stat_result]]:
    """The files that matter: those at the top, and code below it."""
    seen = 0
    for place, below, names in os.walk(top):
        below[:] = [name for name in below if not name.startswith((".", "__pycache__"))]
        seen += len(below) + len(names)
        if seen > _MAX_ENTRIES:
            raise UnnameableError(f"{top}, which has more than {_MAX_ENTRIES} files,")
        for name in names:
            if not name.endswith(_MATTER if place == top else ".py"):
                continue
            try:
                info = os.stat(os.path.join(place, name))
            except OSError:
                continue  # a link to nothing, or into what may not be read
            if stat.S_ISREG(info.st_mode):
                yield os.path.relpath(os.path.join(place, name), top), info


def _repository(model: str) -> str:
    """The hub's name in ``owner/name:quantisation`` and ``owner/name/file``."""
    return "/".join(model.partition(":")[0].split("/")[:2])


def _usual_cache() -> list[str]:
    try:
        from huggingface_hub import constants
    except ImportError:
        return []
    return [constants.HF_HUB_CACHE]


def _commit(cache: str, repository: str, revision: str) -> str:
    """The commit of a revision in a cache of the hub; empty if there is none."""
    place = os.path.join(cache, "--".join(["models", *repository.split("/")]))
    try:
        with open(os.path.join(place, "refs", revision), encoding="utf-8") as ref:
            commit = ref.read(128).strip()
    except (OSError, ValueError):
        commit = revision
    return commit if commit and os.path.isdir(os.path.join(place, "snapshots", commit)) else ""


def code_repositories(model_config: Any) -> set[str]:
    """Other repositories on the hub that a model takes its code from."""
    if not getattr(model_config, "trust_remote_code", False):
        return set()
    found = getattr(getattr(model_config, "hf_config", None), "auto_map", None) or {}
    named = [name for value in found.values() for name in (value if isinstance(value, (list, tuple)) else [value])]
    return {name.partition("--")[0] for name in named if isinstance(name, str) and "--" in name}
