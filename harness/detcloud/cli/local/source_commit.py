"""The git commit of a folder, for the option `--git` of `detcloud create`."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

from detcloud.shared.errors import DetcloudError

GIT_SECONDS_MAX = 60.0
"""The time limit of a call of git, in seconds."""
_REMOTE = re.compile(r"(?:.*[/:@])?(?P<owner>[A-Za-z0-9._-]+)/(?P<name>[A-Za-z0-9._-]+)")


def commit_overrides(place: Path) -> list[str]:
    """Return the overrides of a configuration that state the commit of the folder's repository.

    The repository of the commit is that of the remote `origin`, if there is such a remote.

    Args:
        place: the folder or file with the training code.

    Raises:
        DetcloudError: git is not installed or fails, the folder is in no repository, or the
            repository has changes that are not committed.
    """
    folder = place if place.is_dir() else place.resolve().parent
    commit = _ask_git(folder, "rev-parse", "--verify", "HEAD")
    if commit is None:
        raise DetcloudError(f"--git: {folder} has no commit; run `git init` and `git commit` first")
    if _ask_git(folder, "status", "--porcelain"):
        raise DetcloudError(
            f"--git: the repository of {folder} has changes; commit them, or submit without --git"
        )
    fields = {"commit": commit}
    repository = parse_repository(_ask_git(folder, "remote", "get-url", "origin") or "")
    if repository:
        fields["repository"] = repository
    # The quotes keep a commit of digits from being read as a number.
    return [f"integrations.github.{name}={json.dumps(value)}" for name, value in fields.items()]


def parse_repository(remote: str) -> str:
    """Return the repository of a remote's URL as `OWNER/REPOSITORY`; "" for another form.

    A login in the URL is left out.
    """
    found = _REMOTE.fullmatch(remote.strip().removesuffix("/").removesuffix(".git"))
    return f"{found['owner']}/{found['name']}" if found else ""


def _ask_git(folder: Path, *words: str) -> str | None:
    """Return the output of git in a folder, without blanks around. Return None if git fails.

    Raises:
        DetcloudError: git is not installed, or does not answer in time.
    """
    # Locks would disturb another running git.
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words],
            capture_output=True,
            text=True,
            timeout=GIT_SECONDS_MAX,
            env=environment,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DetcloudError(f"--git: git cannot be run: {error}") from None
    return done.stdout.strip() if done.returncode == 0 else None
