"""Request ids as the daemons take them."""

import hashlib

# 256 characters are at most 1024 bytes of UTF-8, the limit of a lookup's id.
_LONGEST = 256


def wire_id(request_id: str) -> str:
    """The id itself, or a digest of one that is too long.

    Clients choose request ids: a daemon that refuses one would end the session
    of every other request too.
    """
    if len(request_id) <= _LONGEST:
        return request_id
    return "sha256:" + hashlib.sha256(request_id.encode("utf-8", "surrogatepass")).hexdigest()
