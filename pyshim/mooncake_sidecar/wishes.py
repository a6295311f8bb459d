"""What a client asks for one request, in ``kv_transfer_params``.

``max_load_tokens`` and ``max_offload_tokens`` have the names and meanings of
vLLM's offloading connector: at most so many tokens are loaded beyond what the
engine holds, and at most a prefix of so many tokens is stored. ``skip_save:
true`` stores nothing of the request. Other keys are other connectors'.
"""

import logging
import reprlib
import time
from collections.abc import Callable, Mapping
from typing import Any

from mooncake_sidecar import messages as msg

logger = logging.getLogger("vllm.mooncake_sidecar.wishes")

MAX_TOKENS = 1 << 31
"""The daemons' limit of a token count; what is above is no bound."""
_QUIET_S = 1.0


def parse(params: Any) -> tuple[msg.Controls | None, list[str]]:
    """(the wishes, None without any; what is wrong with the others). Never raises: clients write them."""
    if not params:
        return None, []
    if not isinstance(params, Mapping):
        return None, [f"kv_transfer_params is {_shown(params)}; write an object"]
    wrong, found = [], {}
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
    return (msg.Controls(**found) if found else None), wrong


def _shown(value: Any) -> str:
    """A client's value for the log, in time that does not depend on its size."""
    if type(value) is int and value.bit_length() > 128:  # Python writes no integer of over 4300 digits
        return "a huge number"
    try:
        return reprlib.repr(value)[:100]
    except (ValueError, RecursionError):  # such a number inside
        return f"a {type(value).__name__}"


class WishReader:
    """Reads requests' wishes and says what is wrong with them, at most once a second."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._quiet_until = float("-inf")

    def read(self, request: Any) -> msg.Controls | None:
        """The request's wishes; what can't be read is no wish."""
        params = request.kv_transfer_params
        if not params:
            return None
        found, wrong = parse(params)
        if wrong and (now := self._clock()) >= self._quiet_until:
            self._quiet_until = now + _QUIET_S
            logger.warning(
                "kv_transfer_params of request %.100s: %s. The wish is ignored", request.request_id, "; ".join(wrong)
            )
        return found
