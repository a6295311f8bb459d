"""What the daemon of a GPU is called: ``cuda-N``, with the machine's number of the GPU.

The name is all that keeps the GPUs' daemons apart, so two engines must give one
GPU the same, and two GPUs different ones.
"""

import ctypes
import uuid

from mooncake_sidecar.layout import UnsupportedLayout

LIBRARY = "libnvidia-ml.so.1"


def device_name(index: int, visible: str | None, gpu: bytes, library: str = LIBRARY) -> str:
    """The daemon's name of CUDA device ``index``.

    Args:
        visible: ``CUDA_VISIBLE_DEVICES``, which has the machine's numbers, or other names.
        gpu: the UUID by which the machine is asked for the number where that has none.
        library: NVML's.

    Raises:
        UnsupportedLayout: nobody knows the machine's number of the GPU.
    """
    names = [name.strip() for name in visible.split(",")] if visible else []
    if not names:
        return f"cuda-{index}"
    if index < len(names) and names[index].isdecimal():
        return f"cuda-{int(names[index])}"
    try:
        return f"cuda-{_machine_number(gpu, library)}"
    except OSError as error:
        raise UnsupportedLayout(
            f"CUDA_VISIBLE_DEVICES={visible} does not say which of the machine's GPUs this is, and neither does NVML "
            f"({error}); give the GPU's number there, as nvidia-smi -L shows it"
        ) from error


def _machine_number(gpu: bytes, library: str) -> int:
    nvml = ctypes.CDLL(library)
    handle, number = ctypes.c_void_p(), ctypes.c_uint()
    name = f"GPU-{uuid.UUID(bytes=gpu)}"
    _check(nvml.nvmlInit_v2(), "nvmlInit")
    try:
        _check(nvml.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle)), name)
        _check(nvml.nvmlDeviceGetIndex(handle, ctypes.byref(number)), name)
    finally:
        nvml.nvmlShutdown()
    return number.value


def _check(code: int, what: str) -> None:
    if code:
        raise OSError(f"{what}: NVML error {code}")
