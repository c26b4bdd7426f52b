"""The system user of an agent, and work in the name of this user."""

from __future__ import annotations

import grp
import os
import pwd
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

GPU_GROUPS = ("video", "render")
"""The groups that give access to GPUs, if the machine has them."""


class AccountFailed(Exception):
    """The user cannot be created or removed."""


def ensure_account(user: str, home: Path) -> bool:
    """Create the system user `user` if missing; return whether the user is new.

    Raises:
        AccountFailed: the system refuses.
    """
    try:
        pwd.getpwnam(user)
    except KeyError:
        pass
    else:
        return False
    shell = next(
        (path for path in ("/usr/sbin/nologin", "/sbin/nologin") if Path(path).exists()),
        "/bin/false",
    )
    options = ["--system", "--user-group", "--home-dir", str(home), "--no-create-home"]
    _run(["useradd", *options, "--shell", shell, user])
    return True


def add_groups(user: str, groups: Sequence[str]) -> None:
    """Add the user to the existing groups among `groups`. Raise AccountFailed on a refusal."""
    for name in groups:
        try:
            members = grp.getgrnam(name).gr_mem
        except KeyError:
            continue
        if user not in members:
            _run(["usermod", "--append", "--groups", name, user])


def remove_account(user: str) -> None:
    """Delete the user if present. Files of the user stay.

    Raises:
        AccountFailed: the system refuses, for example because a process of the user runs.
    """
    try:
        pwd.getpwnam(user)
    except KeyError:
        return
    _run(["userdel", user])


def do_as(user: str, work: Callable[[], None]) -> None:
    """Do `work` in a child process with the rights of the user, or here without a user.

    The files of the agent's user are therefore never followed or written with the rights of root.

    Raises:
        AccountFailed: the work failed in the child; the message is that of the child's error.
    """
    if not user:
        work()
        return
    entry = pwd.getpwnam(user)
    groups = os.getgrouplist(user, entry.pw_gid)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _work_as(entry, groups, work, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as messages:
        message = messages.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    if status:
        raise AccountFailed(message or f"the work of user {user} ended with status {status}")


def _work_as(
    entry: pwd.struct_passwd, groups: Sequence[int], work: Callable[[], None], writing: int
) -> NoReturn:
    """Do `work` with the rights of a user, write an error to the pipe, and end the process."""
    code = 1
    try:
        os.setgroups(groups)
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)
        os.environ["HOME"] = entry.pw_dir
        os.chdir("/")
        work()
        code = 0
    except BaseException as error:
        os.write(writing, str(error).encode()[:4096])
    finally:
        os._exit(code)


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise AccountFailed(f"{command[0]} does not work: {error}") from error
    if done.returncode:
        raise AccountFailed(f"{' '.join(command)} failed: {done.stderr.strip()}")
