"""The boot script of EC2's instances, as a launch gives it to them."""

import base64
import gzip
import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

from control_plane.agents.agent_code import agent_code
from control_plane.fleet.records import IntentRow
from provisioner.clouds.aws.launch_request import USER_DATA_BYTES_MAX
from provisioner.clouds.provider import ConfigurationError

SILENT_MINUTES = 30
# Within the 20 minutes that a pool gives an instance to start.
BOOT_SECONDS = 600

_BOOT = Path(__file__).resolve().parents[2] / "images" / "boot"
_PARTS = {"INSTALL": "install.sh", "FETCH_CODE": "fetch_code.py", "DOCKER": "docker.sh"}
# Text that may stand between single quotes, and in a unit of systemd.
_PLAIN = re.compile(r"[A-Za-z0-9._:/$-]*")


def user_data(
    url: str, cluster: str, code_place: str, *, session_manager: bool = False
) -> Callable[[IntentRow], bytes]:
    """Return a function that renders the script of a launch; `url` is the cluster's API, and
    `code_place` the URL in its bucket below which the agent's code is, by its digest. With
    `session_manager` Systems Manager may open sessions.

    A script holds no secret but what a pool's `startup_script` itself contains.
    """

    def render_script(request: IntentRow) -> bytes:
        section = json.loads(request.section or "{}")
        values = {
            "URL": url,
            "CLUSTER": cluster,
            "POOL": request.pool,
            "CODE_PLACE": code_place,
            "CODE_SHA256": agent_code().sha256,
            "SILENT_MINUTES": str(SILENT_MINUTES),
            "BOOT_SECONDS": str(BOOT_SECONDS),
            "LOG_GROUP": section.get("log_group") or "",
            "LOG_STREAM": section.get("log_stream") or "",
            "SESSION_MANAGER": "1" if session_manager else "",
            # As the provisioner counts a type without GPUs; see instance_types.slots_of.
            "CPU_SLOTS": str(int(section.get("cpu_slots_allowed") is True)),
        }
        file_systems = [_mount_fields(it) for it in section.get("file_systems") or ()]
        folders = [folder for _, _, folder, _ in file_systems]
        mounts = [*(section.get("allowed_mounts") or ()), *folders]
        words = [("file_systems", word) for fields in file_systems for word in fields]
        for name, value in [*values.items(), *(("allowed_mounts", it) for it in mounts), *words]:
            if not _PLAIN.fullmatch(value):
                raise ConfigurationError(
                    f"{name.lower()} {value!r:.80} cannot stand in a boot script"
                )
        values["ALLOWED_MOUNTS"] = " ".join(mounts)
        values["FILE_SYSTEM_FOLDERS"] = " ".join(folders)
        values["FILE_SYSTEMS"] = _mount_commands(file_systems)
        values["STARTUP_SCRIPT"] = _isolated_command(section.get("startup_script") or "")
        text = _template()
        for name, value in values.items():
            text = text.replace(f"@{name}@", value)
        script = text.encode()
        # cloud-init unpacks what is compressed; nobody needs that while it fits as it is.
        return script if len(script) <= USER_DATA_BYTES_MAX else gzip.compress(script, mtime=0)

    return render_script


def _mount_fields(file_system: Mapping[str, str]) -> tuple[str, str, str, str]:
    """Return the arguments of the script's mount_file_system."""
    kind, mount_name = file_system.get("type", "efs"), file_system.get("mount_name", "")
    return kind, file_system["id"], file_system["folder"], mount_name


def _mount_commands(file_systems: Sequence[tuple[str, ...]]) -> str:
    """Return the commands that mount file systems, "" for none."""
    if not file_systems:
        return ""
    functions = (_BOOT / "file_systems.sh").read_text(encoding="utf-8")
    calls = [shlex.join(("mount_file_system", *fields)) for fields in file_systems]
    return "\n".join((functions.rstrip("\n"), *calls))


def _isolated_command(script: str) -> str:
    """Return a command that runs the script, whatever is in it, and goes on if it fails. What it
    writes stays on the machine, where root alone reads it: secrets may be in it.
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
def _template() -> str:
    """Return the script without its values, with what fetches code and what installs."""
    text = (_BOOT / "ec2.sh").read_text(encoding="utf-8")
    for name, file in _PARTS.items():
        part = (_BOOT / file).read_text(encoding="utf-8").rstrip("\n")
        text = text.replace(f"@{name}@", part)
    return text
