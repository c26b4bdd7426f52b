"""Rendering of an instance's boot script, from the parts in images/boot."""

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
# By default, a pool terminates an instance whose agent did not enrol within 20 minutes. A boot must
# therefore fail earlier, so that the instance can report the failure.
BOOT_SECONDS = 600
# The network of a new machine may come up late.
REACH_SECONDS = 120

_BOOT = Path(__file__).resolve().parents[1] / "images" / "boot"
# The parts that the scripts of all clouds share: files in images/boot, by placeholder.
_PARTS = {
    "FAILURES": "failures.sh",
    "WATCHDOG": "watchdog.sh",
    "USER": "user.sh",
    "REACH": "reach.sh",
    "UPDATES": "updates.sh",
    "INSTALL": "install.sh",
    "GPUS": "gpus.sh",
    "DOCKER": "docker.sh",
    "AGENT": "agent.sh",
    "AWAIT_AGENT": "await_agent.sh",
}
MountFields = tuple[str, str, str, str]
"""The arguments of the shell function mount_file_system: type, source, folder, and a value whose
meaning depends on the type.
"""
# A line that only has a comment, in a script, a unit or a program of Python. The first line of a
# script names the interpreter and stays.
_COMMENT = re.compile(r"^[ \t]*#(?!!).*\n", re.MULTILINE)
# Text that is safe within single quotes of a shell and in a systemd unit.
_PLAIN = re.compile(r"[A-Za-z0-9._:/$-]*")


def common_values(
    request: IntentRow, url: str, cluster: str, code_place: str, gpus: int | None
) -> dict[str, str]:
    """Return the values that the boot scripts of all clouds use, by placeholder name.

    The first call in a process packs the agent's code in memory, for the code's digest; nothing is
    uploaded. Raises ValueError if `section` of the request is not JSON.

    Args:
        request: the intent of the launch. It names the pool, and its `section` has the cloud's own
            settings of the pool as JSON.
        url: the URL of the cluster's API.
        cluster: the id of the cluster.
        code_place: the URL of the folder that contains the archives of the agent's code by digest.
            "" if instances request the code from the cluster.
        gpus: the number of GPUs of the launched machine type, None if unknown.
    """
    return {
        "URL": url,
        "CLUSTER": cluster,
        "POOL": request.pool,
        "CODE_PLACE": code_place,
        "CODE_SHA256": agent_code().sha256,
        "SILENT_MINUTES": str(SILENT_MINUTES),
        "BOOT_SECONDS": str(BOOT_SECONDS),
        "REACH_SECONDS": str(REACH_SECONDS),
        "GPU_COUNT": "" if gpus is None else str(gpus),
        # The provisioner counts an instance type without GPUs in the same way.
        "CPU_SLOTS": str(int(provider_section(request).get("cpu_slots_allowed") is True)),
    }


def provider_section(request: IntentRow) -> Mapping[str, Any]:
    """Return the cloud's own settings of the pool at the time of the launch request.

    Return an empty mapping if the request stores no settings. Raises ValueError for invalid JSON.
    """
    section: Mapping[str, Any] = json.loads(request.section or "{}")
    return section


def check_plain(fields: Iterable[tuple[str, str]]) -> None:
    """Raise ConfigurationError for the first field that is unsafe in a boot script.

    A safe value has only letters and digits of ASCII and the characters `._:/$-`. It may be empty.

    Args:
        fields: names for the error message, each with a value.
    """
    for name, value in fields:
        if not _PLAIN.fullmatch(value):
            raise ConfigurationError(
                f"{name.lower()} {value!r:.80} cannot be used in a boot script"
            )


def fill_script(template: str, values: Mapping[str, str]) -> bytes:
    """Return a boot script as UTF-8, with the shared parts and the values filled in.

    The values are inserted unchanged. A placeholder without a value stays. Raises OSError if the
    template does not exist.

    Args:
        template: the name of a file in images/boot.
        values: the texts that replace the placeholders `@NAME@`, by NAME.
    """
    text = _template(template)
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text.encode()


def boot_part(file: str) -> str:
    """Return the text of a file in images/boot, without the line breaks at the end.

    Raises OSError if the file does not exist.
    """
    return (_BOOT / file).read_text(encoding="utf-8").rstrip("\n")


def mount_values(
    section: Mapping[str, Any], mount_fields: Callable[[Mapping[str, str]], MountFields]
) -> dict[str, str]:
    """Return a boot script's values for file systems and allowed mounts, by placeholder name.

    The allowed mounts are the pool's `allowed_mounts`, then the folders of the file systems. A
    value is "" if the pool has no file systems or no mounts. Raises ConfigurationError if a mount
    or an argument is unsafe in a boot script, and errors of `mount_fields`.

    Args:
        section: the cloud's own settings of the pool, as `provider_section` returns them.
        mount_fields: returns the arguments of mount_file_system for a file system's settings.
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
    """Return shell commands that mount the file systems in this order. Return "" for none."""
    if not file_systems:
        return ""
    calls = [shlex.join(("mount_file_system", *fields)) for fields in file_systems]
    return "\n".join((boot_part("file_systems.sh"), *calls))


def isolated_command(script: str) -> str:
    """Return a shell command that runs a user's script and prints a line if the script fails.

    The command always succeeds, so that the boot continues. Return "" for an empty script. The
    script's output goes to a file on the machine that only root can read, since the output may
    contain secrets.
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
    """Return the text of a boot script with the shared parts filled in, without comments.

    The text is cached. EC2 limits the size of a script, and comments are a third of it.
    """
    text = (_BOOT / file).read_text(encoding="utf-8")
    for name, part in _PARTS.items():
        text = text.replace(f"@{name}@", boot_part(part))
    return _COMMENT.sub("", text)
