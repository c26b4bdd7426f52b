"""The managers of an agent's process: systemd, or the keeper on machines without systemd."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Protocol

from detcloud.agent.machine.layout import UNIT, Layout

STOP_SECONDS = 60.0
LOG_CHARACTERS = 4096
_CRON = Path("/etc/cron.d")


class ServiceFailed(Exception):
    """The agent's process cannot be managed. The message says what to do."""


class ServiceManager(Protocol):
    """The manager of an agent's process. All methods may be repeated."""

    name: str
    """`systemd` or `keeper`."""

    def start(self, python: str) -> None:
        """Write the service, and start the agent now and after each boot of the machine."""

    def restart(self) -> None:
        """Restart the agent without a stop of trials."""

    def is_running(self) -> bool:
        """Return whether the agent, or the process that keeps the agent alive, runs."""

    def remove(self) -> None:
        """Stop the agent and the trials, and delete the service."""

    def log_place(self) -> str:
        """Return the command that shows the agent's log."""

    def last_line(self) -> str:
        """Return the last line of the agent's log, or "" if the log is empty or unreadable."""


class Systemd:
    """systemd, for the machine or for the present user."""

    name = "systemd"

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._scope = [] if layout.is_system else ["--user"]

    def start(self, python: str) -> None:
        """Write and enable the unit, and start the agent. A running agent is not restarted."""
        unit = self._layout.unit
        unit.parent.mkdir(parents=True, exist_ok=True)
        unit.write_text(unit_text(self._layout, python))
        unit.chmod(0o644)
        self._call("daemon-reload")
        self._call("enable", "--now", UNIT)
        if not self._layout.is_system:
            # Otherwise the services of the user end with the last session.
            with contextlib.suppress(OSError):
                subprocess.run(["loginctl", "enable-linger"], capture_output=True, check=False)

    def restart(self) -> None:
        """Send SIGHUP to the agent, which ends without a stop of trials and starts again."""
        self._call("reload-or-restart", UNIT)

    def is_running(self) -> bool:
        """Return whether the unit is active."""
        done = subprocess.run(
            ["systemctl", *self._scope, "is-active", "--quiet", UNIT], check=False
        )
        return done.returncode == 0

    def remove(self) -> None:
        """Stop, disable and delete the unit."""
        if self._layout.unit.exists():
            self._call("disable", "--now", UNIT)
            self._layout.unit.unlink(missing_ok=True)
            self._call("daemon-reload")
            with contextlib.suppress(ServiceFailed):
                self._call("reset-failed", UNIT)

    def log_place(self) -> str:
        """Return the command of journalctl."""
        return " ".join(["journalctl", *self._scope, "-u", UNIT])

    def last_line(self) -> str:
        """Return the last line of the journal of the unit."""
        command = ["journalctl", *self._scope, "-u", UNIT, "-n", "1", "-o", "cat", "--no-pager"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    def _call(self, *words: str) -> None:
        done = subprocess.run(
            ["systemctl", *self._scope, *words], capture_output=True, text=True, check=False
        )
        if done.returncode:
            text = f"systemctl {' '.join(words)} failed: {done.stderr.strip()}"
            raise ServiceFailed(f"{text}; look at `{self.log_place()}`")


class KeeperService:
    """The keeper, a process of detcloud, for machines without systemd."""

    name = "keeper"

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._cron = _CRON / "detcloud-agent"

    def start(self, python: str) -> None:
        """Start the keeper if no keeper runs. A system installation also has a cron entry."""
        command = [python, "-I", str(self._layout.root / "keeper.py")]
        if self._layout.is_system and _CRON.is_dir():
            self._cron.write_text(f"@reboot {self._layout.user} {' '.join(command)}\n")
        if self.is_running():
            return
        owner: dict[str, Any] = (
            {} if not self._layout.is_system else _owner_options(self._layout.user)
        )
        environment = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        home = str(self._layout.work) if self._layout.is_system else str(Path.home())
        process = subprocess.Popen(
            command,
            cwd=self._layout.work,
            env={**environment, "HOME": home},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            **owner,
        )
        # The keeper outlives the installer. Without a return code, Popen would warn about that.
        process.returncode = 0

    def restart(self) -> None:
        """Send SIGHUP to the keeper, which passes the signal on to the agent."""
        pid = self._pid()
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGHUP)

    def is_running(self) -> bool:
        """Return whether a keeper has the lock in the work directory."""
        return self._pid() is not None

    def remove(self) -> None:
        """Stop the keeper and the agent, and delete the entry of cron.

        After STOP_SECONDS, the processes are killed.
        """
        if self._layout.is_system:
            self._cron.unlink(missing_ok=True)
        pid = self._pid()
        if pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        until = time.monotonic() + STOP_SECONDS
        while self.is_running() and time.monotonic() < until:
            time.sleep(0.05)
        if self.is_running():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)

    def log_place(self) -> str:
        """Return the path of the log."""
        return f"tail {self._layout.work}/agent.log"

    def last_line(self) -> str:
        """Return the last line of the log. Refuse a link, which the agent's user could place."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(self._layout.work / "agent.log", flags)
            with os.fdopen(descriptor, errors="replace") as log:
                lines = log.read()[-LOG_CHARACTERS:].splitlines()
        except OSError:
            return ""
        return lines[-1] if lines else ""

    def _pid(self) -> int | None:
        """Return the process id of the keeper, or None without a running keeper."""
        try:
            with (self._layout.work / "keeper.lock").open("rb") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return int(json.loads(lock.read())["pid"])
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return None


def find_manager(layout: Layout) -> ServiceManager:
    """Return systemd if present and usable by this user, else the keeper."""
    if shutil.which("systemctl") is None or not Path("/run/systemd/system").is_dir():
        return KeeperService(layout)
    if not layout.is_system:
        command = ["systemctl", "--user", "show-environment"]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            return KeeperService(layout)
    return Systemd(layout)


def unit_text(layout: Layout, python: str) -> str:
    """Return the systemd unit of the agent.

    Only the agent's process gets the signals of systemd, so that trials survive a restart. A stop
    lets the trials store checkpoints.
    """
    lines = [
        "[Unit]",
        "Description=detcloud agent: runs trials of a cluster on this machine",
        "Wants=network-online.target",
        "After=network-online.target",
        "StartLimitIntervalSec=0",
        "",
        "[Service]",
        "Type=exec",
        f"ExecStart={python} -I {layout.root}/launcher.py",
        "ExecReload=/bin/kill -HUP $MAINPID",
        "Restart=always",
        "RestartSec=2",
        "KillMode=process",
        f"TimeoutStopSec={STOP_SECONDS:.0f}",
        "UMask=0077",
        f"WorkingDirectory={layout.work}",
        "LimitNOFILE=1048576",
        "LimitMEMLOCK=infinity",
        "OOMPolicy=continue",
    ]
    if layout.is_system:
        lines += [
            f"User={layout.user}",
            f"Group={layout.user}",
            f"Environment=HOME={layout.work}",
            "NoNewPrivileges=yes",
            "ProtectSystem=full",
            "ProtectKernelTunables=yes",
            "ProtectKernelModules=yes",
            "ProtectKernelLogs=yes",
            "ProtectControlGroups=yes",
            "ProtectClock=yes",
            "ProtectHostname=yes",
            "RestrictSUIDSGID=yes",
            "LockPersonality=yes",
            "CapabilityBoundingSet=",
        ]
    target = "multi-user.target" if layout.is_system else "default.target"
    return "\n".join([*lines, "", "[Install]", f"WantedBy={target}", ""])


def _owner_options(user: str) -> dict[str, Any]:
    """Return the arguments of Popen for a process of `user`, with the user's groups."""
    entry = pwd.getpwnam(user)
    groups = os.getgrouplist(user, entry.pw_gid)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": groups}
