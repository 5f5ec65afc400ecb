"""Numbers of NVML's errors -> what it means for a person, and what to do. nvml.h, nvmlReturn_t."""

from __future__ import annotations

NOT_SUPPORTED = 3
DRIVER_NOT_LOADED = 9
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13

_WORDS = {
    NOT_SUPPORTED: ("not supported", "a newer driver may tell"),
    4: ("no permission", "ask as one who may open /dev/nvidia*, or give the container the device"),
    8: ("too little power", "check the card's power cables"),
    DRIVER_NOT_LOADED: ("the driver is not loaded", "load it (modprobe nvidia) or install it"),
    10: ("timeout", "try nvidia-smi; where that hangs too, reboot"),
    11: ("its interrupts do not arrive", "reboot, then look at the kernel's log"),
    LIBRARY_NOT_FOUND: (
        "its library libnvidia-ml is not here",
        "start a container with the GPU (docker run --gpus all); else install that library",
    ),
    FUNCTION_NOT_FOUND: ("the driver does not know the question", "update the driver"),
    15: ("it has fallen off the bus", "reboot, then check its seat, riser and power"),
    16: ("it wants a reset", "nvidia-smi --gpu-reset, or reboot"),
    18: (
        "driver and library have different versions",
        "the driver was updated while it ran: reboot, or reload its kernel modules",
    ),
    20: ("out of memory", "free some of the machine's memory and ask again"),
    28: ("no such card", "nvidia-smi -L lists those there are"),
    999: ("unknown error", "try nvidia-smi; where that fails too, reboot"),
}


def told(code: int) -> str:
    """'it wants a reset. What to do: nvidia-smi --gpu-reset, or reboot.'"""
    words, advice = _WORDS.get(code, (f"NVML error {code}", "try nvidia-smi for its own words"))
    return f"{words}. What to do: {advice}."
