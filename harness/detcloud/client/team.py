"""Tokens of the first administrators of clusters that were deployed from this machine."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from detcloud.shared.errors import DetcloudError
from detcloud.shared.tokens import TOKEN_PREFIX, mint_token


@dataclass(frozen=True)
class TeamToken:
    """The token of a team's first administrator, and the file that stores the token."""

    token: str
    path: Path

    @property
    def sha256(self) -> str:
        """The digest of the token in hexadecimal, which the cluster stores."""
        return hashlib.sha256(self.token.encode()).hexdigest()


def load_team_token(team: str) -> TeamToken:
    """Return the token of a team from `~/.detcloud/teams/TEAM.token`.

    Create a token and the file if the file does not exist. The file outlives an interrupted
    deployment.

    Raises:
        DetcloudError: the file cannot be read or written, or contains no token.
    """
    path = Path.home() / ".detcloud" / "teams" / f"{team}.token"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            _write_once(path, f"{mint_token()}\n")
        token = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise DetcloudError(f"{path} cannot be used: {error.strerror}") from None
    except ValueError:
        token = ""
    if not token.startswith(TOKEN_PREFIX):
        expected = f"a token, {TOKEN_PREFIX}..."
        raise DetcloudError(f"{path} must hold {expected}; without the file one is made")
    return TeamToken(token, path)


def _write_once(path: Path, text: str) -> None:
    """Write a new file that only the owner can read. Keep an existing file.

    Other processes never see a part of the text.
    """
    fresh = path.with_name(f".{path.name}-{os.getpid()}")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    try:
        os.link(fresh, path)
    except FileExistsError:
        pass
    finally:
        fresh.unlink()
