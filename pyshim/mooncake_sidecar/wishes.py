"""What a client asks for one request, in ``kv_transfer_params``.

``max_load_tokens`` and ``max_offload_tokens`` have the names and meanings of
vLLM's offloading connector: at most so many tokens are loaded beyond what the
engine holds, and at most a prefix of so many tokens is stored. ``skip_save:
true`` stores nothing of the request. ``mooncake_sidecar`` is an object with what
only this connector knows: ``ttl_s`` and ``pin`` of what the request stores.
Other keys are other connectors'.
"""

import logging
import reprlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mooncake_sidecar import messages as msg

logger = logging.getLogger("vllm.mooncake_sidecar.wishes")

MAX_TOKENS = 1 << 31
"""The daemons' limit of a token count; what is above is no bound."""
MAX_TTL_S = 100 * 365 * 24 * 3600
"""What the store can count: a century."""
PINS = {"none": 0, "soft": 1, "hard": 2}
"""How strongly a chunk is kept: as others, evicted last, not evicted."""
OWN_KEY = "mooncake_sidecar"
_OWN_KEYS = ("pin", "ttl_s")
_QUIET_S = 1.0


@dataclass(frozen=True, slots=True)
class Wishes:
    """What one request asks for; None: nothing."""

    max_load_tokens: int | None = None
    max_offload_tokens: int | None = None
    ttl_s: int | None = None
    """How long what it stores lives; 0: as long as the namespace's chunks do."""
    pin: int | None = None

    def controls(self) -> msg.Controls | None:
        """What a daemon is to know of them with a load, None for nothing."""
        if self.max_load_tokens is None and self.max_offload_tokens is None:
            return None
        return msg.Controls(self.max_load_tokens, self.max_offload_tokens)


NO_WISHES = Wishes()


def is_ttl(value: Any) -> bool:
    """Whether it is a number of seconds that the store can count."""
    return type(value) is int and 0 <= value <= MAX_TTL_S


def parse(params: Any) -> tuple[Wishes, list[str]]:
    """(the wishes; what is wrong with the others). Never raises: clients write them."""
    if not params:
        return NO_WISHES, []
    if not isinstance(params, Mapping):
        return NO_WISHES, [f"kv_transfer_params is {_shown(params)}; write an object"]
    wrong: list[str] = []
    found: dict[str, int] = {}
    for name in ("max_load_tokens", "max_offload_tokens"):
        value = params.get(name)
        if type(value) is int and value >= 0:
            if value < MAX_TOKENS:
                found[name] = value
        elif value is not None:
            wrong.append(f"{name} is {_shown(value)}; write a whole number of tokens, 0 or more")
    skip = params.get("skip_save")
    if skip is True:
        found["max_offload_tokens"] = 0
    elif skip is not None and skip is not False:
        wrong.append(f"skip_save is {_shown(skip)}; write true or false")
    own = params.get(OWN_KEY)
    if isinstance(own, Mapping):
        _parse_own(own, found, wrong)
    elif own is not None:
        wrong.append(f"{OWN_KEY} is {_shown(own)}; write an object with {' and '.join(_OWN_KEYS)}")
    return (Wishes(**found) if found else NO_WISHES), wrong


def _parse_own(own: Mapping[Any, Any], found: dict[str, int], wrong: list[str]) -> None:
    ttl_s, pin = own.get("ttl_s"), own.get("pin")
    if is_ttl(ttl_s):
        found["ttl_s"] = ttl_s
    elif ttl_s is not None:
        wrong.append(f"ttl_s is {_shown(ttl_s)}; write whole seconds, 0 to {MAX_TTL_S}")
    if isinstance(pin, str) and pin in PINS:
        found["pin"] = PINS[pin]
    elif pin is not None:
        wrong.append(f"pin is {_shown(pin)}; write one of {', '.join(PINS)}")
    unknown = next((key for key in own if key not in _OWN_KEYS), None)
    if unknown is not None:
        wrong.append(f"{OWN_KEY} has the unknown key {_shown(unknown)}; known are {', '.join(_OWN_KEYS)}")


def _shown(value: Any) -> str:
    """A client's value for the log, in time that does not depend on its size."""
    if type(value) is int and value.bit_length() > 128:  # Python writes no integer of over 4300 digits
        return "a huge number"
    try:
        return reprlib.repr(value)[:100]
    except (ValueError, RecursionError):  # such a number inside
        return f"a {type(value).__name__}"


class WishReader:
    """Reads requests' wishes, counts those that are wrong, and says what is, at most once a second."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        count: Callable[[str, float], None] = lambda name, value: None,
    ) -> None:
        """Args:
        count: adds to a named counter.
        """
        self._clock = clock
        self._count = count
        self._quiet_until = float("-inf")

    def read(self, request: Any) -> Wishes:
        """The request's wishes; what can't be read is no wish."""
        params = request.kv_transfer_params
        if not params:
            return NO_WISHES
        found, wrong = parse(params)
        if wrong:
            self._count("wishes_ignored", len(wrong))
            if (now := self._clock()) >= self._quiet_until:
                self._quiet_until = now + _QUIET_S
                logger.warning(
                    "kv_transfer_params of request %.100s: %s. The wish is ignored",
                    request.request_id,
                    "; ".join(wrong),
                )
        return found
