"""When vLLM takes a GPU's KV cache away and gives it back: sleep, discard and wake-up.

Connectors have no hook for it, but it all goes through one object in this
process, vLLM's allocator (``vllm.device_allocator.cumem``). Its three methods are
observed as long as the KV cache is registered: the owner of the registration is
told before they may take the memory, and again when they are through.

The memory is mapped chunks. While another process maps one it is not free, but
it is not the engine's any more either: what the engine is given at wake-up are
other chunks, at the same addresses. So a daemon that does not let go keeps memory
occupied; it can't write what the engine uses.
"""

import logging
from collections.abc import Callable
from typing import Any, Protocol

from mooncake_sidecar.layout import UnsupportedLayout
from mooncake_sidecar.registration import Memory

logger = logging.getLogger("vllm.mooncake_sidecar.gpusleep")

_TAKING = ("sleep", "discard")
_GIVING = ("wake_up",)
_BACKEND = "cumem"
_CHUNKED = ("cuda_vmm", "cuda_fabric")


class Owner(Protocol):
    """Who has registered the KV cache. Its methods are called on vLLM's worker thread."""

    def leave_memory(self) -> None:
        """The memory is about to go. What is still unfinished then is the owner's loss."""
        ...

    def memory_gone(self) -> None:
        """All of it has gone: nobody else can touch the engine's any more."""
        ...

    def memory_back(self) -> None:
        """All of it is there, in new chunks, with nothing in it."""
        ...


def may_go(model_config: Any) -> bool:
    """Whether the engine's KV cache is in memory that can be taken away while it runs."""
    return bool(getattr(model_config, "enable_cumem_allocator", False) or model_config.enable_sleep_mode)


def refuse(why: str) -> UnsupportedLayout:
    """The reason to run without the store."""
    return UnsupportedLayout(
        f"sleep mode takes a GPU's KV cache away from under the daemon, and {why}; "
        "leave --enable-sleep-mode (and --enable-cumem-allocator) out"
    )


# What the owner was told last.
_HERE, _LEFT, _GONE = "here", "left", "gone"


class Watch:
    """Observes an allocator for as long as it is open.

    INVARIANT: the owner is told in turns: leave, perhaps gone, back.
    """

    def __init__(self, allocator: Any, backend: str, memory: Memory, owner: Owner) -> None:
        """Args:
        allocator: vLLM's, of this process.
        backend: vLLM's mechanism of sleep mode.
        memory: the KV cache as it is registered.

        Raises:
            UnsupportedLayout: it is not known how this vLLM takes the memory away.
        """
        if backend != _BACKEND:
            raise refuse(f"how sleep mode's backend {backend!r} does that is not known")
        missing = [name for name in (*_TAKING, *_GIVING) if not callable(getattr(allocator, name, None))]
        if missing:
            raise refuse(f"this vLLM's allocator has no {', '.join(missing)}")
        self._allocator = allocator
        self._owner = owner
        if any(region.kind not in _CHUNKED for region in memory.regions):
            raise refuse("this vLLM's allocator does not give the KV cache chunks of its own")
        self._mine = [pointer for place in memory.places for pointer in self._around(*place)]
        self._awake()  # as known as what it will be asked
        self._state = _HERE
        self._open = True
        self._before = {name: vars(allocator)[name] for name in (*_TAKING, *_GIVING) if name in vars(allocator)}
        self._observers = {
            name: self._observe(getattr(allocator, name), takes=name in _TAKING) for name in (*_TAKING, *_GIVING)
        }
        for name, observer in self._observers.items():
            setattr(allocator, name, observer)

    def close(self) -> None:
        """Observe no more. Observers of ours that others have wrapped meanwhile stay, and do nothing."""
        self._open = False
        for name, observer in self._observers.items():
            if vars(self._allocator).get(name) is not observer:
                continue
            if name in self._before:
                setattr(self._allocator, name, self._before[name])
            else:
                delattr(self._allocator, name)
        self._observers, self._before = {}, {}

    def _around(self, address: int, size: int) -> list[int]:
        """The allocator's keys of what a region lies in."""
        try:
            found = [
                pointer
                for pointer, data in self._allocator.pointer_to_data.items()
                if pointer < address + size and address < pointer + data.handle[1]
            ]
        except (AttributeError, TypeError, IndexError) as error:
            raise refuse(f"this vLLM's allocator keeps other books than are known ({error})") from error
        if not found:
            raise refuse("the KV cache is not in the memory that vLLM's allocator speaks of")
        return found

    def _awake(self) -> list[bool]:
        """Of each allocation of the KV cache whether it is there. One that was freed is not."""
        try:
            books = self._allocator.pointer_to_data
            return [pointer in books and not books[pointer].is_asleep for pointer in self._mine]
        except (AttributeError, TypeError) as error:
            raise refuse(f"this vLLM's allocator keeps other books than are known ({error})") from error

    def _observe(self, method: Callable[..., Any], takes: bool) -> Callable[..., Any]:
        def observed(*args: Any, **kwargs: Any) -> Any:
            if takes and self._open and self._state is _HERE:
                self._state = _LEFT
                self._tell(self._owner.leave_memory)
            try:
                return method(*args, **kwargs)
            finally:
                self._tell(self._look)

        return observed

    def _look(self) -> None:
        """Tell the owner what has become of its memory."""
        if not self._open or self._state is _HERE:
            return
        awake = self._awake()
        if all(awake):
            self._state = _HERE
            self._owner.memory_back()
        elif self._state is _LEFT and not any(awake):
            self._state = _GONE
            self._owner.memory_gone()

    def _tell(self, what: Callable[[], None]) -> None:
        """vLLM's own business goes on, whatever happens to ours."""
        try:
            what()
        except Exception:
            logger.exception("the KV store is left out until the engine's next wake-up")
