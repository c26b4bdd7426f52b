"""The installation and the removal of an agent, through a connection with the machine."""

from __future__ import annotations

import io
import json
import shlex
import tarfile
from collections.abc import Callable
from typing import Any, NamedTuple

from detcloud.cli.machines.ssh_connection import SshConnection, SshFailed
from detcloud.shared.errors import DetcloudError

_UNPACK = (
    'umask 077; d=$(mktemp -d "${TMPDIR:-/tmp}/detcloud.XXXXXX") && tar -xf - -C "$d" && echo "$d"'
)
_SYSTEM_PYTHON = "/opt/detcloud/versions/current/bin/python"
_USER_PYTHON = '"${XDG_DATA_HOME:-$HOME/.local/share}"/detcloud-agent/versions/current/bin/python'


class AgentPackage(NamedTuple):
    """The agent's code and the installer, as the cluster serves them."""

    version: str
    sha256: str
    archive: bytes
    script: bytes
    """The installer, a shell script."""


class Step(NamedTuple):
    """A finding or a finished step on a machine."""

    check: str
    state: str
    """`ok`, `warning` or `error`."""
    text: str


class SetupFailed(DetcloudError):
    """The work on a machine failed. The message says what to do."""


def install_agent(
    connection: SshConnection,
    package: AgentPackage,
    options: dict[str, Any],
    report: Callable[[Step], None],
) -> str:
    """Install or repair the agent of a machine, and return the agent's name.

    Args:
        connection: the machine.
        package: the code of the cluster.
        options: the options of the installer, with the join token.
        report: called with each finding and step.

    Raises:
        SetupFailed: a check or a step failed.
        SshFailed: the connection failed.
    """
    start = _privilege(connection, is_user_install=bool(options.get("user_install")))
    unpacked = connection.run(_UNPACK, _bundle(package))
    folder = unpacked.output.strip()
    if unpacked.code or not folder:
        raise SetupFailed(f"the code could not be copied: {unpacked.errors or 'no output'}")
    place = shlex.quote(folder)
    wanted = {
        **options,
        "version": package.version,
        "sha256": package.sha256,
        "archive": f"{folder}/code.tar.gz",
    }
    python = options.get("python")
    named = f"--python {shlex.quote(str(python))} " if python else ""
    steps: list[Step] = []

    def read_line(line: str) -> None:
        step = _parse_step(line)
        if step is not None:
            steps.append(step)
            report(step)

    try:
        command = f"{start}sh {place}/install.sh {named}--stdin"
        ended = connection.run(command, json.dumps(wanted).encode(), read_line)
    finally:
        connection.run(f"rm -rf {place}")
    errors = [step.text for step in steps if step.state == "error"]
    if ended.code or errors:
        last = ended.errors.splitlines()[-1] if ended.errors else "the installer printed nothing"
        raise SetupFailed("; ".join(errors) or last)
    return next((step.text for step in steps if step.check == "agent"), "")


def remove_agent(
    connection: SshConnection, report: Callable[[Step], None], *, is_user_install: bool
) -> None:
    """Stop the agent of a machine, and delete all that the installation has created.

    A machine without an agent is not changed.

    Raises:
        SetupFailed: a step failed.
        SshFailed: the connection failed.
    """
    start = _privilege(connection, is_user_install=is_user_install)
    python = _USER_PYTHON if is_user_install else _SYSTEM_PYTHON
    if connection.run(f"test -e {python}").code:
        report(Step("files", "ok", "no agent is installed"))
        return
    options = json.dumps({"user_install": is_user_install}).encode()
    errors = []

    def read_line(line: str) -> None:
        step = _parse_step(line)
        if step is not None:
            report(step)
            if step.state == "error":
                errors.append(step.text)

    command = f"cd / && {start}{python} -P -m detcloud.agent.machine remove"
    ended = connection.run(command, options, read_line)
    if ended.code or errors:
        raise SetupFailed("; ".join(errors) or ended.errors or "the removal printed nothing")


def _privilege(connection: SshConnection, *, is_user_install: bool) -> str:
    """Return the beginning of commands that need root: "" or `sudo -n `.

    Raises:
        SetupFailed: the user is not root and cannot use sudo without a password.
    """
    if is_user_install:
        return ""
    found = connection.run(
        'if [ "$(id -u)" = 0 ]; then echo root; else sudo -n true && echo sudo; fi'
    )
    if found.output.strip() == "root":
        return ""
    if found.output.strip() == "sudo":
        return "sudo -n "
    raise SetupFailed(
        "the installation needs root: log in as root, allow `sudo` without a password, or use "
        "--user-install"
    )


def _bundle(package: AgentPackage) -> bytes:
    """Return a tar archive with the installer and the agent's code."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as bundle:
        for name, content in (("install.sh", package.script), ("code.tar.gz", package.archive)):
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o600
            bundle.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def _parse_step(line: str) -> Step | None:
    """Parse a line of the installer. Return None for another line, such as a greeting."""
    try:
        fields = json.loads(line)
        return Step(str(fields["check"]), str(fields["state"]), str(fields["text"]))
    except (ValueError, KeyError, TypeError):
        return None


__all__ = ["AgentPackage", "SetupFailed", "SshFailed", "Step", "install_agent", "remove_agent"]
