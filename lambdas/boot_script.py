"""The boot script of a cloud's instances, made of the parts in images/boot."""

import base64
import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from control_plane.agents.agent_code import agent_code
from control_plane.fleet.records import IntentRow
from provisioner.clouds.provider import ConfigurationError

SILENT_MINUTES = 30
# Within the 20 minutes that a pool gives an instance to start.
BOOT_SECONDS = 600

_BOOT = Path(__file__).resolve().parents[1] / "images" / "boot"
# What the scripts of all clouds have in common.
_PARTS = {
    "FAILURES": "failures.sh",
    "WATCHDOG": "watchdog.sh",
    "USER": "user.sh",
    "INSTALL": "install.sh",
    "DOCKER": "docker.sh",
    "AGENT": "agent.sh",
    "AWAIT_AGENT": "await_agent.sh",
}
MountFields = tuple[str, str, str, str]
"""The arguments of the scripts' mount_file_system: type, source, folder, and what the type adds."""
# Text that may stand between single quotes, and in a unit of systemd.
_PLAIN = re.compile(r"[A-Za-z0-9._:/$-]*")


def common_values(request: IntentRow, url: str, cluster: str, code_place: str) -> dict[str, str]:
    """The values that the scripts of all clouds have: `url` is the cluster's API, and `code_place`
    the URL in its bucket below which the agent's code is, by its digest.
    """
    return {
        "URL": url,
        "CLUSTER": cluster,
        "POOL": request.pool,
        "CODE_PLACE": code_place,
        "CODE_SHA256": agent_code().sha256,
        "SILENT_MINUTES": str(SILENT_MINUTES),
        "BOOT_SECONDS": str(BOOT_SECONDS),
        # As the provisioner counts a type without GPUs.
        "CPU_SLOTS": str(int(provider_section(request).get("cpu_slots_allowed") is True)),
    }


def provider_section(request: IntentRow) -> Mapping[str, Any]:
    """The section `provider` of the pool that a launch is for."""
    section: Mapping[str, Any] = json.loads(request.section or "{}")
    return section


def check_plain(fields: Iterable[tuple[str, str]]) -> None:
    """Raise ConfigurationError for a text, with its name, that a shell would read."""
    for name, value in fields:
        if not _PLAIN.fullmatch(value):
            raise ConfigurationError(
                f"{name.lower()} {value!r:.80} cannot be used in a boot script"
            )


def fill_script(template: str, values: Mapping[str, str]) -> bytes:
    """Return a script of images/boot with its parts, and values in place of their names."""
    text = _template(template)
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text.encode()


def boot_part(file: str) -> str:
    """Return a file of images/boot as a part of a script."""
    return (_BOOT / file).read_text(encoding="utf-8").rstrip("\n")


def mount_values(
    section: Mapping[str, Any], mount_fields: Callable[[Mapping[str, str]], MountFields]
) -> dict[str, str]:
    """Return the values of a pool's file systems and of what its trials may mount; `mount_fields`
    describes a file system. Raises ConfigurationError.
    """
    file_systems = [mount_fields(file_system) for file_system in section.get("file_systems") or ()]
    folders = [folder for _, _, folder, _ in file_systems]
    mounts = [*(section.get("allowed_mounts") or ()), *folders]
    words = [("file_systems", word) for fields in file_systems for word in fields]
    check_plain([*(("allowed_mounts", mount) for mount in mounts), *words])
    return {
        "ALLOWED_MOUNTS": " ".join(mounts),
        "FILE_SYSTEM_FOLDERS": " ".join(folders),
        "FILE_SYSTEMS": _mount_commands(file_systems),
    }


def _mount_commands(file_systems: Sequence[MountFields]) -> str:
    """Return the commands that mount file systems; "" for none."""
    if not file_systems:
        return ""
    calls = [shlex.join(("mount_file_system", *fields)) for fields in file_systems]
    return "\n".join((boot_part("file_systems.sh"), *calls))


def isolated_command(script: str) -> str:
    """Return a command that runs any script, and continues if the script fails.

    The script's output stays on the machine, readable by root only, since it may contain secrets.
    """
    if not script:
        return ""
    encoded = base64.b64encode(script.encode()).decode()
    log = '"$root/var/log/detcloud-startup.log"'
    return (
        f"(umask 077; echo {shlex.quote(encoded)} | base64 --decode | bash > {log} 2>&1)"
        ' || echo "the startup script ended with $?"'
    )


@cache
def _template(file: str) -> str:
    text = (_BOOT / file).read_text(encoding="utf-8")
    for name, part in _PARTS.items():
        text = text.replace(f"@{name}@", boot_part(part))
    return text
