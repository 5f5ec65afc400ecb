"""Numbers of NVML's errors -> what it means for a person, and what to do. nvml.h, nvmlReturn_t."""

from __future__ import annotations

NOT_SUPPORTED = 3
DRIVER_NOT_LOADED = 9
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13

_WORDS = {
    NOT_SUPPORTED: ("not supported", "try a newer driver"),
    4: (
        "no permission",
        "run as a user who may open /dev/nvidia*, or pass the device to the container",
    ),
    8: ("too little power", "check the card's power cables"),
    DRIVER_NOT_LOADED: ("the driver is not loaded", "load it (modprobe nvidia) or install it"),
    10: ("timeout", "try nvidia-smi; if that hangs too, reboot"),
    11: ("its interrupts do not arrive", "reboot, then check the kernel log"),
    LIBRARY_NOT_FOUND: (
        "its library libnvidia-ml is missing",
        "start the container with the GPU (docker run --gpus all), or install the library",
    ),
    FUNCTION_NOT_FOUND: ("the driver does not support this query", "update the driver"),
    15: ("the GPU has fallen off the bus", "reboot, then check its seat, riser and power"),
    16: ("the GPU needs a reset", "nvidia-smi --gpu-reset, or reboot"),
    18: (
        "driver and library have different versions",
        "the driver was updated while running: reboot, or reload its kernel modules",
    ),
    20: ("out of memory", "free some RAM and try again"),
    28: ("no such GPU", "nvidia-smi -L lists the GPUs"),
    999: ("unknown error", "try nvidia-smi; if that fails too, reboot"),
}


def told(code: int) -> str:
    """'it wants a reset. What to do: nvidia-smi --gpu-reset, or reboot.'"""
    words, advice = _WORDS.get(code, (f"NVML error {code}", "see what nvidia-smi says"))
    return f"{words}. Fix: {advice}."
