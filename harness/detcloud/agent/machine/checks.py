"""The checks of a machine before the installation of an agent."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from detcloud.agent.address import LOOPBACK, local_address
from detcloud.agent.devices.nvidia import nvidia_slots
from detcloud.agent.machine.server_access import ServerUnreachable, get
from detcloud.agent.slots import SlotsUnknown
from detcloud.shared.address_list import split_addresses

DISK_BYTES_MIN = 5 << 30
CLOCK_SECONDS_MAX = 30.0
MTU_MIN = 1400
COMMAND_SECONDS_MAX = 15.0


class Finding(NamedTuple):
    """The result of a check."""

    check: str
    """The name of the check, for example `disk`."""
    state: str
    """`ok`, `warning`, or `error`, which stops the installation."""
    text: str
    """A sentence for the user."""


def check_machine(url: str, pin: str, folder: Path, runtime: str) -> list[Finding]:
    """Check this machine, and return all findings. Nothing is changed.

    Args:
        url: the cluster.
        pin: the pin of the server's certificate, or "".
        folder: the folder whose disk stores the trials. It need not exist.
        runtime: the container runtime of the agent: `process` or another one.
    """
    return [
        _check_system(),
        *_check_server(url, pin),
        _check_route(url),
        _check_devices(),
        _check_runtime(runtime),
        _check_disk(folder),
    ]


def _check_system() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.platform != "linux":
        text = f"{platform.system()} is not supported; agents run on Linux"
        return Finding("system", "error", text)
    return Finding("system", "ok", f"{platform.machine()} Linux, Python {version}")


def _check_server(url: str, pin: str) -> list[Finding]:
    """Check that the cluster answers this machine, and compare the clocks."""
    try:
        answer = get(url, "/api/v1/health", pin=pin)
    except ServerUnreachable as error:
        host = urlsplit(split_addresses(url)[0]).hostname
        hint = "open the port in the firewall, or name another address with --server"
        if host in ("localhost", LOOPBACK, "::1"):
            hint = "this address only works on the server itself; name another with --server"
        return [Finding("server", "error", f"{error}; {hint}")]
    found = [Finding("server", "ok", f"{url} answers")]
    if answer.time_seconds is None:
        return found
    # The header has whole seconds.
    ahead = time.time() - answer.time_seconds
    difference = max(0.0, abs(ahead) - 1)
    if difference <= CLOCK_SECONDS_MAX:
        return [*found, Finding("clock", "ok", f"the clocks differ by {difference:.0f} s")]
    side = "ahead of" if ahead > 0 else "behind"
    text = f"the clock is {difference:.0f} s {side} the server's; start a time service, for example"
    return [*found, Finding("clock", "warning", f"{text} `timedatectl set-ntp true`")]


def _check_route(url: str) -> Finding:
    """Check the MTU of the interface by which this machine reaches the cluster."""
    address = local_address(url)
    try:
        listing = _run(["ip", "-o", "address"])
        name = next(line.split()[1] for line in listing.splitlines() if f" {address}/" in line)
        mtu = int(Path(f"/sys/class/net/{name.partition('@')[0]}/mtu").read_text())
    except (OSError, ValueError, StopIteration):
        return Finding("route", "ok", f"the machine's address is {address}")
    if mtu >= MTU_MIN:
        return Finding("route", "ok", f"the machine's address is {address}, MTU {mtu}")
    text = f"the MTU of {name} is {mtu}; trials on several machines may hang below {MTU_MIN}"
    return Finding("route", "warning", text)


def _check_devices() -> Finding:
    """Check the driver of the GPUs."""
    if Path("/dev/kfd").exists():
        return Finding("devices", "ok", "an AMD GPU with /dev/kfd")
    try:
        slots = nvidia_slots()
    except SlotsUnknown as error:
        return Finding("devices", "error", f"{error}; install the driver, or use --cpu-slots")
    if slots:
        names = sorted({slot.name for slot in slots})
        return Finding("devices", "ok", f"{len(slots)} GPUs: {', '.join(names)}")
    if _has_nvidia_card():
        text = "an NVIDIA card without a driver; install the driver until `nvidia-smi` lists GPUs"
        return Finding("devices", "warning", text)
    return Finding("devices", "ok", f"no GPU, {os.cpu_count()} cores")


def _has_nvidia_card() -> bool:
    """Return whether the PCI bus has a display controller of NVIDIA."""
    for device in Path("/sys/bus/pci/devices").glob("*"):
        try:
            vendor = (device / "vendor").read_text().strip()
            kind = (device / "class").read_text().strip()
        except OSError:
            continue
        if vendor == "0x10de" and kind.startswith("0x03"):
            return True
    return False


def _check_runtime(runtime: str) -> Finding:
    """Check that the programs of the container runtime are installed."""
    if runtime == "process":
        found = [name for name in ("docker", "podman", "apptainer") if shutil.which(name)]
        more = f" ({' and '.join(found)} found)" if found else ""
        return Finding("runtime", "ok", f"trials run as processes{more}")
    if shutil.which(runtime) is None:
        text = f"{runtime} is not installed; install it, or use --container-runtime process"
        return Finding("runtime", "error", text)
    return Finding("runtime", "ok", f"trials run in containers of {runtime}")


def _check_disk(folder: Path) -> Finding:
    """Check the free space of the disk that will have the work directory."""
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free >= DISK_BYTES_MIN:
        return Finding("disk", "ok", f"{free / 2**30:.0f} GiB free on {folder}")
    text = f"only {free / 2**30:.1f} GiB free on {folder}; choose another disk with --work-dir"
    return Finding("disk", "warning", text)


def _run(command: list[str]) -> str:
    """Run a command, and return the output. Raise OSError if it fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=COMMAND_SECONDS_MAX
        )
    except subprocess.SubprocessError as error:
        raise OSError(str(error)) from error
    return done.stdout
