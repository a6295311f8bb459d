"""What a user may write into ``kv_connector_extra_config``.

The keys of vLLM's in-tree store connector keep their names and meanings, so
that a configuration can be moved over; the rest are ours. A key that nobody
knows is refused: a misspelt key that is silently ignored costs days.
"""

import difflib
import logging
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mooncake_sidecar.wishes import MAX_TTL_S, PINS, is_ttl

logger = logging.getLogger("vllm.mooncake_sidecar.config")

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?\s*$", re.IGNORECASE)
_DURATION = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h)?\s*$")
_SECONDS = {None: 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_LEVELS = ("debug", "info", "warn", "error")
MAX_STORE_TP = 64  # shards of a chunk

# In-tree keys that are accepted and change nothing yet.
_WITHOUT_EFFECT = {
    "preferred_segment": "a shared-memory store has no segments to choose from",
    "enable_group_semantics": "it speaks to a Mooncake cluster only",
    "enable_cross_layers_blocks": "the engine's own layout is used",
    "custom_mem_pool": "the KV cache is shared with the daemon in another way",
}


def parse_size(value: Any, key: str) -> int:
    """Bytes of ``4294967296``, ``"4GiB"``, ``"4GB"`` or ``"512m"``; units are powers of 1024."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError(f'{key} is {value!r}; write a number of bytes or a text like "4GiB"')
    match = _SIZE.match(str(value))
    if match is None:
        raise ValueError(f'{key} is {value!r}; write a number of bytes or a text like "4GiB"')
    size = int(float(match[1]) * _UNITS[match[2].upper()])
    if size <= 0:
        raise ValueError(f"{key} is {value!r}; it must be more than 0 bytes")
    return size


def parse_seconds(value: Any, key: str, least: float) -> float:
    """Seconds of ``10``, ``2.5``, ``"90s"`` or ``"15m"``."""
    seconds = None if isinstance(value, bool) else _seconds(value)
    if seconds is None:
        raise ValueError(f'{key} is {value!r}; write seconds as a number, or a text like "15m"')
    if not least <= seconds <= 86400 * 30:
        raise ValueError(f"{key} is {value!r}; it must be at least {least:g} seconds")
    return seconds


def parse_bool(value: Any, key: str) -> bool:
    """A JSON boolean, or the texts the in-tree connector accepts."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    raise ValueError(f"{key} is {value!r}; write true or false")


def parse_retention(value: Any, key: str) -> int:
    """Tokens of ``"engine"`` (0), ``"dense"`` (-1) or a positive number of tokens."""
    named = {"engine": 0, "dense": -1}
    if isinstance(value, str) and value.strip().lower() in named:
        return named[value.strip().lower()]
    try:
        return _integer(value, key, 1, 1 << 31)
    except ValueError:
        raise ValueError(
            f'{key} is {value!r}; write "engine", "dense", or a number of tokens that is a multiple of the '
            "scheduler block size"
        ) from None


def _integer(value: Any, key: str, least: int, most: int) -> int:
    if isinstance(value, str) and value.strip().isdigit():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{key} is {value!r}; write a whole number from {least} to {most}")
    return value


def parse_sizes(value: Any, key: str) -> tuple[int, ...]:
    """A list of numbers of ranks."""
    if not isinstance(value, list) or not value:
        raise ValueError(f"{key} is {value!r}; write a list of tensor-parallel sizes like [2, 4]")
    return tuple(_integer(size, key, 1, MAX_STORE_TP) for size in value)


def _whole_seconds(value: Any, key: str) -> int:
    seconds = None if isinstance(value, bool) else _seconds(value)
    if seconds is None or not is_ttl(int(seconds)) or seconds != int(seconds):
        raise ValueError(f'{key} is {value!r}; write whole seconds, 0 to {MAX_TTL_S}, or a text like "12h"')
    return int(seconds)


def _seconds(value: Any) -> float | None:
    match = _DURATION.match(str(value))
    return None if match is None else float(match[1]) * _SECONDS[match[2]]


def _pin(value: Any, key: str) -> str:
    if not isinstance(value, str) or value not in PINS:
        raise ValueError(f"{key} is {value!r}; write one of {', '.join(PINS)}")
    return value


def _choice(value: Any, key: str, *of: str) -> str:
    if value not in of:
        raise ValueError(f"{key} is {value!r}; write one of {', '.join(of)}")
    return value


def _text(value: Any, key: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{key} is {value!r}; write a text")
    return value


@dataclass(frozen=True)
class Settings:
    """The parsed ``kv_connector_extra_config``."""

    # In-tree keys.
    load_async: bool | None = None
    """Every load runs beside the engine's steps. Unset: but for one from this node's memory into an engine on the CPU in
    which nothing else runs; that is part of the step that computes behind it."""
    lookup_async: bool | None = None
    """Never wait for a lookup: ask again in a later step. Unset: only where the store is "mooncake"."""
    enable_lookup: bool = True
    """Look up and load; without it the engine only stores."""
    save_decode_cache: bool = False
    """Store generated tokens too, not prompts only."""
    cache_prefix: str = ""
    """Keeps the cache apart from that of engines with another prefix."""
    lookup_rpc_port: int = 0
    """Part of the lookup socket's name, for in-tree clients that must find it."""
    store_tp_size: int = 0
    """Into how many shards a chunk is cut along its KV heads, so that engines of all tensor-parallel sizes that divide
    it share their cache; 0: one shard a rank. Engines that are to share must all have the same number."""
    enable_store_tp_lcm: bool = False
    """Takes the least common multiple of prefill_tp_sizes for store_tp_size."""
    prefill_tp_sizes: tuple[int, ...] = ()
    """The tensor-parallel sizes of the engines that are to share, for enable_store_tp_lcm."""
    # Ours.
    compat_keys: bool = False
    """Name shards by the in-tree connector's keys, so that engines with that connector can share them. The keys leave
    much out that a namespace has; a warning at start says what."""
    runtime_dir: str = ""
    """Where the sockets are; empty: the default place."""
    store: str = ""
    """Where the cache is: "embedded", on this node, or "mooncake", shared with other nodes through a Mooncake Store
    cluster, too. Empty: as MOONCAKE_SIDECAR_STORE says, else embedded."""
    store_python: str = ""
    """The interpreter with Mooncake's wheel, for store mooncake; empty: the engine's own."""
    mooncake_library: str = ""
    """Mooncake's C library, to reach the cluster without a process of the wheel; empty: with one."""
    mooncake_config: str = ""
    """The file that says how the cluster is reached; empty: as MOONCAKE_CONFIG_PATH says."""
    mooncake_write: str = ""
    """When chunks go to the cluster: "through", at once, or "back", when memory needs their room; empty: through."""
    mooncake_reset: str = ""
    """Whose cache a reset drops in the cluster: "node", nobody's else, or "cluster", the model's; empty: node."""
    mooncake_events: str = ""
    """Where the cluster's master publishes its KV events, as tcp://HOST:PORT; empty: they are not followed."""
    store_bytes: int | None = None
    """Size of the store a lookupd is started with, in bytes; unset: a quarter of the memory that the machine or the container has."""
    lookup_timeout_ms: int = 50
    """How long a synchronous lookup may hold up the scheduler."""
    load_timeout_s: float = 10.0
    """After this a load is cancelled; its request is recomputed once the daemon has acknowledged. One that a step waits for
    (load_async) is cancelled after two seconds."""
    store_timeout_s: float = 30.0
    """After this a store job is cancelled."""
    fence_kill_after_s: float = 2.0
    """How long an autostarted daemon may leave a cancel unanswered before it is killed."""
    autostart: bool = True
    """Start daemons that do not run; otherwise wait for them to be started."""
    linger_s: float = 900.0
    """How long autostarted daemons outlive their last engine."""
    verify: bool = True
    """Compare checksums on load."""
    store_retention: int = 0
    """Before which boundaries a sliding-window group stores its window: "engine" (0) as the engine's
    prefix_cache_retention_interval says, "dense" (-1) before every scheduler block, else every so many tokens."""
    store_ttl_s: int = 0
    """How long what is stored lives, in seconds; 0: as long as the store keeps the model's. A request may say
    otherwise."""
    store_pin: str = "none"
    """How strongly what is stored is kept: "none", "soft" (evicted last) or "hard" (not evicted). A request may say
    otherwise."""
    keep_on_reset: bool = False
    """Leave what is stored as it is when the engine resets its caches, which it does before it sleeps, too. Only for
    engines whose weights stay the same while they run."""
    binaries_dir: str = ""
    """Where the daemons' programs are; empty: in the package, then in PATH."""
    enable_kv_events: bool = False
    """Pass lookupd's KV events on through vLLM's own stream (--kv-events-config); see docs/events.md."""
    log_level: str = "info"
    """Log level of autostarted daemons."""
    ignored: tuple[str, ...] = field(default=())
    """Accepted keys without effect that the user set."""

    @property
    def on_cluster(self) -> bool:
        """Whether a Mooncake cluster is below the node's store."""
        return (self.store or os.environ.get("MOONCAKE_SIDECAR_STORE", "")) == "mooncake"

    @property
    def lookups_beside(self) -> bool:
        """Whether lookups are never waited for."""
        return self.on_cluster if self.lookup_async is None else self.lookup_async

    @property
    def shards_wanted(self) -> int:
        """Shards of a chunk that engines of several tensor-parallel sizes share; 0: none was asked for."""
        return math.lcm(*self.prefill_tp_sizes) if self.enable_store_tp_lcm else self.store_tp_size


_PARSERS: dict[str, Any] = {
    "load_async": parse_bool,
    "lookup_async": parse_bool,
    "enable_lookup": parse_bool,
    "save_decode_cache": parse_bool,
    "cache_prefix": _text,
    "lookup_rpc_port": lambda v, k: _integer(v, k, 0, 65535),
    "store_tp_size": lambda v, k: _integer(v, k, 1, MAX_STORE_TP),
    "enable_store_tp_lcm": parse_bool,
    "prefill_tp_sizes": parse_sizes,
    "compat_keys": parse_bool,
    "runtime_dir": lambda v, k: os.path.expanduser(_text(v, k)),
    "store": lambda v, k: _choice(v, k, "embedded", "mooncake"),
    "store_python": lambda v, k: os.path.expanduser(_text(v, k)),
    "mooncake_library": lambda v, k: os.path.expanduser(_text(v, k)),
    "mooncake_config": lambda v, k: os.path.expanduser(_text(v, k)),
    "mooncake_write": lambda v, k: _choice(v, k, "through", "back"),
    "mooncake_reset": lambda v, k: _choice(v, k, "node", "cluster"),
    "mooncake_events": _text,
    "store_bytes": parse_size,
    "lookup_timeout_ms": lambda v, k: _integer(v, k, 1, 10_000),
    "load_timeout_s": lambda v, k: parse_seconds(v, k, 0.01),
    "store_timeout_s": lambda v, k: parse_seconds(v, k, 0.01),
    "fence_kill_after_s": lambda v, k: parse_seconds(v, k, 0.01),
    "autostart": parse_bool,
    "linger_s": lambda v, k: parse_seconds(v, k, 0),
    "verify": parse_bool,
    "store_retention": parse_retention,
    "store_ttl_s": _whole_seconds,
    "store_pin": _pin,
    "keep_on_reset": parse_bool,
    "binaries_dir": lambda v, k: os.path.expanduser(_text(v, k)),
    "enable_kv_events": parse_bool,
    "log_level": _text,
}


def known_keys() -> list[str]:
    """Every key that is accepted, sorted."""
    return sorted([*_PARSERS, *_WITHOUT_EFFECT])


def parse(extra: Mapping[str, Any] | None) -> Settings:
    """Check and convert the configuration.

    Raises:
        ValueError: a key is unknown (the message lists the known ones and names
            the nearest), or a value does not fit; the message says what would.
    """
    extra = dict(extra or {})
    for key in extra:
        if key in _PARSERS or key in _WITHOUT_EFFECT:
            continue
        near = difflib.get_close_matches(key, known_keys(), n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(
            f"kv_connector_extra_config has the unknown key {key!r}.{hint} Known keys: {', '.join(known_keys())}"
        )
    values = {key: parser(extra[key], key) for key, parser in _PARSERS.items() if key in extra}
    if values.get("load_async") is False:
        raise ValueError(
            "load_async is false, but a load in the middle of a step holds up every request that runs; the connector makes "
            "one there by itself where nothing does. Leave the key out."
        )
    if values.get("log_level", "info") not in _LEVELS:
        raise ValueError(f"log_level is {extra['log_level']!r}; write one of {', '.join(_LEVELS)}")
    if extra.get("preferred_segment") == "":
        raise ValueError("preferred_segment is empty; leave the key out or name a segment")
    if values.get("enable_store_tp_lcm"):
        if "prefill_tp_sizes" not in values:
            raise ValueError(
                "enable_store_tp_lcm is true, but prefill_tp_sizes is not set; list the engines' sizes, like [2, 4]"
            )
        if (shards := math.lcm(*values["prefill_tp_sizes"])) > MAX_STORE_TP:
            raise ValueError(
                f"prefill_tp_sizes is {extra['prefill_tp_sizes']!r}, whose least common multiple is {shards}; "
                f"a chunk has {MAX_STORE_TP} shards at most"
            )
    ignored = tuple(sorted(key for key in extra if key in _WITHOUT_EFFECT))
    if values.get("compat_keys") and str(extra.get("enable_cross_layers_blocks")).strip().lower() == "true":
        raise ValueError(
            "compat_keys and enable_cross_layers_blocks are both true, but objects would have their layers in another "
            "order there than here. Leave enable_cross_layers_blocks out on every engine of the fleet"
        )
    return Settings(**values, ignored=ignored)


def warn_ignored(settings: Settings) -> None:
    """Say once which accepted keys have no effect, and why."""
    if settings.ignored:
        reasons = "; ".join(f"{key}: {_WITHOUT_EFFECT[key]}" for key in settings.ignored)
        logger.warning("kv_connector_extra_config has keys without effect here (%s)", reasons)
