"""Clocks, power and temperature of the GPU, by the driver's management library (NVML) through ctypes.

Source: NVML API reference, "Device Queries". Where there is no such library, everything is None: a benchmark then says
that it does not know.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_int, c_longlong, c_uint, c_ulonglong, c_void_p
from typing import Any

_SM_CLOCK, _GPU_TEMPERATURE = 1, 0
_POWER_INSTANT = 186  # NVML_FI_DEV_POWER_INSTANT
#: nvmlClocksEventReasons -> word
REASONS = {0x4: "power cap", 0x8: "hardware slowdown", 0x20: "thermal, software", 0x40: "thermal, hardware"}


class _FieldValue(ctypes.Structure):
    """nvmlFieldValue_t, whose value is a union of 8 bytes; power is in the lower four."""

    _fields_ = [
        ("field", c_uint), ("scope", c_uint), ("timestamp", c_longlong), ("latency", c_longlong), ("type", c_uint),
        ("failed", c_uint), ("value", c_uint), ("_upper", c_uint),
    ]  # fmt: skip


class Meter:
    """Readings of one GPU. pci: its bus id as torch or nvidia-smi spell it; "" for the first."""

    def __init__(self, pci: str = "") -> None:
        self._library: Any = None
        self._device = c_void_p()
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        if library.nvmlInit_v2():
            return
        named = bool(pci) and not library.nvmlDeviceGetHandleByPciBusId_v2(c_char_p(pci.encode()), byref(self._device))
        if named or not library.nvmlDeviceGetHandleByIndex_v2(c_uint(0), byref(self._device)):
            self._library = library

    def _number(self, name: str, *arguments: Any, kind: Any = c_uint) -> int | None:
        if self._library is None:
            return None
        value = kind()
        failed = getattr(self._library, name)(self._device, *arguments, byref(value))
        return None if failed else value.value

    def driver(self) -> str | None:
        """The driver's version, as "580.159.03"."""
        text = ctypes.create_string_buffer(80)
        if self._library is None or self._library.nvmlSystemGetDriverVersion(text, c_uint(len(text))):
            return None
        return text.value.decode(errors="replace")

    def clock(self) -> int | None:
        """The SMs' clock now, in MHz."""
        return self._number("nvmlDeviceGetClockInfo", c_uint(_SM_CLOCK))

    def highest_clock(self) -> int | None:
        """The SMs' highest clock, in MHz."""
        return self._number("nvmlDeviceGetMaxClockInfo", c_uint(_SM_CLOCK))

    def power(self) -> float | None:
        """Watts, averaged over the last second from Ampere on."""
        milliwatts = self._number("nvmlDeviceGetPowerUsage")
        return None if milliwatts is None else milliwatts / 1e3

    def power_now(self) -> float | None:
        """Watts at this instant; where the driver does not say, `power()`."""
        asked = _FieldValue(field=_POWER_INSTANT)
        if self._library is None:
            return None
        if self._library.nvmlDeviceGetFieldValues(self._device, c_int(1), byref(asked)) or asked.failed:
            return self.power()
        return asked.value / 1e3

    def power_limit(self) -> float | None:
        """Watts at which the card throttles."""
        milliwatts = self._number("nvmlDeviceGetEnforcedPowerLimit")
        return None if milliwatts is None else milliwatts / 1e3

    def temperature(self) -> int | None:
        """Degrees Celsius."""
        return self._number("nvmlDeviceGetTemperature", c_uint(_GPU_TEMPERATURE))

    def reasons(self) -> list[str]:
        """Why the clock is lower than it could be, as far as the driver says."""
        bits = self._number("nvmlDeviceGetCurrentClocksThrottleReasons", kind=c_ulonglong) or 0
        return [word for bit, word in REASONS.items() if bits & bit]
