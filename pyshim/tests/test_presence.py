"""What outlives a rank's presence at its daemon."""

import gc
import weakref

from mooncake_sidecar.presence import Presence


class Tensor:
    """Stands for KV memory."""


class Role:
    def __init__(self, take):
        self.take = take


def test_nothing_holds_the_engines_memory_after_the_end():
    """vLLM counts on it where an engine ends in a process that goes on: its cache is to be free without a collection."""
    gc.disable()
    try:
        tensor = Tensor()
        seen = weakref.ref(tensor)
        presence = Presence(lambda tensor=tensor: tensor, lambda memory, epoch: presence, waits_s=0, patience_s=0)
        presence.role = Role(presence.take)
        del tensor
        assert seen() is not None
        presence.close()
        assert seen() is None
    finally:
        gc.enable()
