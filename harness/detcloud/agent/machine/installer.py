"""The installation, the repair and the removal of an agent on this machine."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from detcloud.agent.machine.account import (
    GPU_GROUPS,
    add_groups,
    do_as,
    ensure_account,
    remove_account,
)
from detcloud.agent.machine.checks import Finding, check_machine
from detcloud.agent.machine.layout import Layout, Settings, find_layout, read_settings
from detcloud.agent.machine.services import ServiceManager, find_manager
from detcloud.agent.machine.versions import (
    choose_version,
    current_version,
    delete_old_versions,
    install_version,
    version_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable

KILL_SECONDS = 5.0
JOIN_SECONDS = 60.0
# The beginning of the agent's log line after a refusal.
REFUSAL = "the cluster refused the agent:"
_MODULES = ("launcher.py", "keeper.py")
_CREATED = "created-user"


class InstallationFailed(Exception):
    """The installation stopped. The message says what to do."""


@dataclass(frozen=True)
class Package:
    """The agent's code to install."""

    version: str
    sha256: str
    content: bytes
    """The archive."""


@dataclass(frozen=True)
class InstallRequest:
    """The wanted installation."""

    settings: Settings
    package: Package
    token: str
    """A join token. "" if the machine has a credential."""
    is_user_install: bool
    runtime: str
    """The container runtime of the agent, for the checks and the groups of the user."""


def install(request: InstallRequest, report: Callable[[Finding], None]) -> None:
    """Install or repair an agent, and start the agent. Trials of a running agent continue.

    Each step changes only what differs, so that a failed installation is repeated as a whole.

    Args:
        request: the wanted installation.
        report: called with each finding and each finished step.

    Raises:
        InstallationFailed: a check failed, or another agent is installed.
        AccountFailed, VersionFailed, ServiceFailed, OSError: a step failed.
    """
    layout = find_layout(is_user_install=request.is_user_install)
    layout = _with_work(layout, Path(request.settings.work))
    settings, package = request.settings, request.package
    _check_rights(layout)
    _check_other_agent(layout, settings)
    findings = check_machine(settings.url, settings.pin, layout.work, request.runtime)
    for finding in findings:
        report(finding)
    if any(finding.state == "error" for finding in findings):
        raise InstallationFailed("a check failed, and nothing was changed")
    _prepare_account(layout, request.runtime)
    _make_folders(layout)
    name = version_name(package.version, package.sha256)
    before = current_version(layout.versions)
    do_as(layout.user, partial(_install_as_user, layout, request))
    report(Finding("code", "ok", f"version {name} is in {layout.versions}"))
    was_changed = before != name or read_settings(layout.config) != settings
    _write_files(layout, settings)
    manager = find_manager(layout)
    was_running = manager.is_running()
    before_seconds = time.time()
    manager.start(settings.python)
    if was_running and was_changed:
        manager.restart()
    if was_changed or not was_running:
        _wait_for_answer(layout, manager, before_seconds)
    report(Finding("service", "ok", f"{manager.name} runs the agent; {manager.log_place()}"))
    report(Finding("agent", "ok", settings.name))


def _wait_for_answer(layout: Layout, manager: ServiceManager, since_seconds: float) -> None:
    """Wait until the cluster has answered the started agent.

    Args:
        layout: the installation.
        manager: the manager of the agent.
        since_seconds: the epoch time before the start.

    Raises:
        InstallationFailed: the cluster refuses the agent, or JOIN_SECONDS have passed.
    """
    until = time.monotonic() + JOIN_SECONDS
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            # The agent's first answer writes the file. Times of files have a coarse clock.
            if (layout.work / "confirmed.json").lstat().st_mtime > since_seconds - 0.1:
                return
        line = manager.last_line()
        if REFUSAL in line:
            raise InstallationFailed(
                f"{line.partition(REFUSAL)[2].strip()}; make a new line with "
                "`detcloud agent join-line`, or repeat `detcloud agent add`"
            )
        time.sleep(0.1)
    raise InstallationFailed(
        f"the agent runs, but has no answer from the cluster after {JOIN_SECONDS:.0f} s: "
        f"{manager.last_line() or 'its log is empty'}; look at `{manager.log_place()}`"
    )


def remove(*, is_user_install: bool, report: Callable[[Finding], None]) -> None:
    """Stop the agent and the trials, and delete everything that the installation has created.

    A machine without an installation is not changed. Images and containers of Docker stay.

    Raises:
        AccountFailed, ServiceFailed, OSError: a step failed; the removal may be repeated.
    """
    layout = find_layout(is_user_install=is_user_install)
    settings = read_settings(layout.config)
    if settings is not None:
        layout = _with_work(layout, Path(settings.work))
    _check_rights(layout)
    manager: ServiceManager = find_manager(layout)
    manager.remove()
    report(Finding("service", "ok", "the agent is stopped"))
    was_created = (layout.root / _CREATED).exists()
    _end_processes(layout, was_created=was_created)
    for folder in (layout.work, layout.root):
        if folder.exists():
            shutil.rmtree(folder)
    report(Finding("files", "ok", f"{layout.root} and {layout.work} are deleted"))
    if layout.is_system and was_created:
        remove_account(layout.user)
        report(Finding("user", "ok", f"user {layout.user} is deleted"))


def _with_work(layout: Layout, work: Path) -> Layout:
    """Return the layout with another work directory."""
    return Layout(layout.root, work, layout.user, layout.units)


def _check_rights(layout: Layout) -> None:
    if layout.is_system and os.getuid() != 0:
        raise InstallationFailed(
            "the installation needs root: log in as root, allow `sudo` without a password, or "
            "use --user-install"
        )


def _check_other_agent(layout: Layout, settings: Settings) -> None:
    """Check that no agent of another name or cluster is installed."""
    known = read_settings(layout.config)
    if known is None:
        return
    if known.name != settings.name:
        raise InstallationFailed(
            f"this machine is agent {known.name} already; use --name {known.name}, or remove it "
            f"first with `detcloud agent remove {known.name}`"
        )
    if Path(known.work) != layout.work:
        raise InstallationFailed(f"the work directory is {known.work}; it cannot be changed")


def _prepare_account(layout: Layout, runtime: str) -> None:
    """Create the agent's user, and remember that the installer created it."""
    if not layout.is_system:
        return
    layout.root.mkdir(mode=0o755, parents=True, exist_ok=True)
    layout.root.chmod(0o755)
    # The mark comes first, so that the removal after a crash also deletes the user.
    mark = layout.root / _CREATED
    try:
        pwd.getpwnam(layout.user)
    except KeyError:
        mark.touch()
    ensure_account(layout.user, layout.work)
    add_groups(layout.user, (*GPU_GROUPS, *(["docker"] if runtime == "docker" else [])))


def _make_folders(layout: Layout) -> None:
    """Create the folders, with the agent's user as the owner of versions and work directory."""
    layout.root.mkdir(mode=0o755, parents=True, exist_ok=True)
    for folder, mode in ((layout.versions, 0o755), (layout.work, 0o700)):
        folder.mkdir(mode=mode, parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fchmod(descriptor, mode)
            if layout.is_system:
                entry = pwd.getpwnam(layout.user)
                os.fchown(descriptor, entry.pw_uid, entry.pw_gid)
        finally:
            os.close(descriptor)


def _install_as_user(layout: Layout, request: InstallRequest) -> None:
    """Install the version and the join token with the rights of the agent's user."""
    os.umask(0o022)
    package = request.package
    name = install_version(
        layout.versions,
        package.version,
        package.sha256,
        package.content,
        request.settings.python,
    )
    if request.token:
        _write_secret(layout.join_token, request.token)
    (layout.work / "rejected.json").unlink(missing_ok=True)
    choose_version(layout.versions, name)
    delete_old_versions(layout.versions)


def _write_secret(path: Path, text: str) -> None:
    """Replace a file, which only the owner can read."""
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "w", encoding="utf-8") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())


def _write_files(layout: Layout, settings: Settings) -> None:
    """Write the settings, the launcher and the keeper, which belong to the installer's user."""
    source = Path(__file__).parent
    contents = {name: (source / name).read_bytes() for name in _MODULES}
    for name, content in {layout.config.name: settings.encode(), **contents}.items():
        fresh = layout.root / f".{name}.new"
        fresh.unlink(missing_ok=True)
        is_private = name == layout.config.name
        # The settings may name a proxy with a password.
        mode = 0o644 if not is_private else 0o640 if layout.is_system else 0o600
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with os.fdopen(os.open(fresh, flags, 0o600), "wb") as file:
            if layout.is_system:
                os.fchown(file.fileno(), 0, pwd.getpwnam(layout.user).pw_gid)
            os.fchmod(file.fileno(), mode)
            file.write(content)
        fresh.replace(layout.root / name)


def _end_processes(layout: Layout, *, was_created: bool) -> None:
    """Kill the remaining processes of the agent's user and of the installed versions."""
    uid = None
    if layout.is_system and was_created:
        with contextlib.suppress(KeyError):
            uid = pwd.getpwnam(layout.user).pw_uid
    until = time.monotonic() + KILL_SECONDS
    while found := _find_processes(layout, uid):
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > until:
            break
        time.sleep(0.05)


def _find_processes(layout: Layout, uid: int | None) -> list[int]:
    """Return the processes of the user `uid` and the processes of the installed versions."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            is_own = entry.stat().st_uid == uid
            command = (entry / "cmdline").read_bytes().decode(errors="replace")
            state = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            continue
        pid = int(entry.name)
        is_agents = command.startswith(f"{layout.versions}/")
        if state != "Z" and pid != os.getpid() and (is_own or is_agents):
            found.append(pid)
    return found
