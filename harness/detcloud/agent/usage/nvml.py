"""The use of NVIDIA GPUs, from the driver's library NVML.

A call of the library takes less than a millisecond, and the start of nvidia-smi takes many. The
library belongs to the driver, so that the agent needs no further package.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, NamedTuple

from detcloud.agent.devices.nvidia import query_nvidia_smi
from detcloud.agent.slots import SlotsUnknown

if TYPE_CHECKING:
    from collections.abc import Iterable

LIBRARY = "libnvidia-ml.so.1"
SMI_FIELDS = "uuid,utilization.gpu,memory.used,memory.total"


class GpuReading(NamedTuple):
    """The use of a GPU."""

    percent: float | None
    """The share of computation, from 0 to 100. None without a figure, for example with MIG."""
    memory: float
    """The share of memory that is in use, from 0 to 1."""


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class Nvml:
    """The driver's library. The process keeps the library open."""

    def __init__(self, library: str = LIBRARY) -> None:
        """Load and start the library. Raise SlotsUnknown if it is missing or does not start."""
        try:
            self._library = ctypes.CDLL(library)
            self._call("nvmlInit_v2")
        except (OSError, AttributeError) as error:
            raise SlotsUnknown(f"NVML could not be loaded: {error}") from error

    def read(self, uuids: Iterable[str]) -> dict[str, GpuReading]:
        """Return the use of each GPU by UUID. GPUs that do not answer are left out."""
        readings = {}
        for uuid in uuids:
            try:
                readings[uuid] = self._read(uuid)
            except SlotsUnknown:
                continue
        return readings

    def close(self) -> None:
        """Release the library's connection to the driver. Errors are ignored."""
        self._library.nvmlShutdown()

    def _read(self, uuid: str) -> GpuReading:
        """Return the use of a GPU. Raise SlotsUnknown if the GPU does not answer."""
        device, memory, use = ctypes.c_void_p(), _Memory(), _Utilization()
        name = ctypes.c_char_p(uuid.encode())
        self._call("nvmlDeviceGetHandleByUUID", name, ctypes.byref(device))
        self._call("nvmlDeviceGetMemoryInfo", device, ctypes.byref(memory))
        try:
            self._call("nvmlDeviceGetUtilizationRates", device, ctypes.byref(use))
            percent: float | None = min(100.0, float(use.gpu))
        except SlotsUnknown:
            percent = None
        return GpuReading(percent, memory.used / memory.total if memory.total else 0.0)

    def _call(self, name: str, *arguments: object) -> None:
        """Call a function. Raise SlotsUnknown if the library returns an error."""
        code = getattr(self._library, name)(*arguments)
        if code != 0:
            raise SlotsUnknown(f"NVML's {name} failed with error {code}")


class GpuReader:
    """Reads GPUs with NVML, or with nvidia-smi on machines without a usable library."""

    def __init__(self, library: str = LIBRARY) -> None:
        """Create the reader. The library is loaded by the first call of `read`."""
        self._name = library
        self._library: Nvml | None = None
        self._is_missing = False

    @property
    def is_slow(self) -> bool:
        """Whether readings start a program, because the library is not usable."""
        return self._is_missing

    def read(self, uuids: Iterable[str]) -> dict[str, GpuReading]:
        """Return the use of GPUs by UUID. Raise SlotsUnknown if no GPU answers.

        If no GPU answers, the next call starts the library again, since the driver may have been
        reloaded.
        """
        wanted = list(uuids)
        if self._library is None and not self._is_missing:
            try:
                self._library = Nvml(self._name)
            except SlotsUnknown:
                self._is_missing = True
        if self._library is None:
            return parse_smi(query_nvidia_smi(SMI_FIELDS))
        readings = self._library.read(wanted)
        if wanted and not readings:
            self._library.close()
            self._library = None
            raise SlotsUnknown("NVML reads none of the GPUs")
        return readings


def parse_smi(listing: str) -> dict[str, GpuReading]:
    """Parse lines of SMI_FIELDS by UUID, for example `GPU-1, 40 %, 1024 MiB, 81920 MiB`.

    Malformed lines are skipped.
    """
    readings = {}
    for line in listing.splitlines():
        uuid, *texts = [field.strip() for field in line.split(",")]
        if len(texts) != 3:
            continue
        percent, used, total = (_number(text) for text in texts)
        memory = used / total if used is not None and total else 0.0
        readings[uuid] = GpuReading(percent, memory)
    return readings


def _number(text: str) -> float | None:
    """Return the number at the beginning of a text. None without a number."""
    number = text.partition(" ")[0]
    return float(number) if number.isdecimal() else None
