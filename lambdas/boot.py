"""The boot script of a cloud's instances, as a launch gives it to them."""

import base64
import json
import re
import shlex
from collections.abc import Callable
from functools import cache
from pathlib import Path

from control_plane.api.agent_code import agent_code
from control_plane.fleet.records import IntentRow
from provisioner.clouds.provider import Misconfigured

SILENT_MINUTES = 30

_BOOT = Path(__file__).resolve().parent.parent / "images" / "boot"
# What may stand between single quotes, and in a unit of systemd.
_PLAIN = re.compile(r"[A-Za-z0-9._:/$-]*")


def user_data(url: str, cluster: str) -> Callable[[IntentRow], bytes]:
    """Makes the script of a launch; `url` is the cluster's API.

    It holds no secret but what a pool's `startup_script` itself contains.
    """

    def script(request: IntentRow) -> bytes:
        section = json.loads(request.section or "{}")
        values = {
            "URL": url,
            "CLUSTER": cluster,
            "POOL": request.pool,
            "CODE_SHA256": agent_code().sha256,
            "SILENT_MINUTES": str(SILENT_MINUTES),
            # As the provisioner counts a type without GPUs; see instance_types.slots_of.
            "CPU_SLOTS": str(int(section.get("cpu_slots_allowed") is True)),
        }
        mounts = section.get("allowed_mounts") or []
        for name, value in [*values.items(), *(("allowed_mounts", one) for one in mounts)]:
            if not _PLAIN.fullmatch(value):
                raise Misconfigured(f"{name.lower()} {value!r:.80} cannot stand in a boot script")
        values["ALLOWED_MOUNTS"] = " ".join(mounts)
        values["STARTUP_SCRIPT"] = _run_by_itself(section.get("startup_script") or "")
        text = _template()
        for name, value in values.items():
            text = text.replace(f"@{name}@", value)
        return text.encode()

    return script


def _run_by_itself(script: str) -> str:
    """A command that runs the script, whatever is in it, and goes on if it fails."""
    if not script:
        return ""
    encoded = base64.b64encode(script.encode()).decode()
    return f"echo {shlex.quote(encoded)} | base64 --decode | bash || true"


@cache
def _template() -> str:
    """With what its machine image may lack."""
    install = (_BOOT / "install.sh").read_text(encoding="utf-8").rstrip("\n")
    return (_BOOT / "ec2.sh").read_text(encoding="utf-8").replace("@INSTALL@", install)
