"""The credential of an agent's machine: a token that the agent generates and replaces.

The agent stores a new token before it sends the digest to the cluster. After a lost answer, either
the stored present token or the stored next token is valid.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from typing import TYPE_CHECKING

from detcloud.shared.files import read_json_object
from detcloud.shared.tokens import mint_token

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

REPLACED_AFTER_MS = 7 * 24 * 3600 * 1000
# A restored cluster only knows a former token. 52 tokens cover a year.
FORMER_MAX = 52


class Credential:
    """The tokens in the file `credential.json` of the work directory, readable by the owner only.

    Only the thread of the session uses an object after the start.
    """

    def __init__(
        self,
        path: Path,
        join_token: Path | None = None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """Read the file at `path`. A missing or damaged file counts as empty.

        `join_token` is the file of a join token that `confirm` deletes.
        """
        self._path = path
        self._join_token = join_token
        self._now_ms = now_ms
        stored = read_json_object(path) or {}
        self._current = str(stored.get("current") or "")
        self._next = str(stored.get("next") or "")
        self._since_ms = int(stored.get("since_ms") or 0)
        former = stored.get("former")
        self._former = [str(token) for token in former] if isinstance(former, list) else []

    @property
    def is_usable(self) -> bool:
        """Whether the cluster has accepted a token, so that no join token is needed."""
        return bool(self._current)

    def prepare(self) -> str:
        """Return the SHA-256 of the token that the next enrolment should leave valid.

        The token is the present one, or a new one if the present token is a week old. A new token
        is stored first. Raise OSError if the file cannot be written.
        """
        is_due = self._now_ms() - self._since_ms >= REPLACED_AFTER_MS
        if not self._next and (not self._current or is_due):
            self._next = mint_token()
            self._store()
        return hashlib.sha256((self._next or self._current).encode()).hexdigest()

    def tokens(self) -> list[str]:
        """Return the tokens that may be valid: the present, the next, then former tokens."""
        return [token for token in (self._current, self._next, *self._former) if token]

    def forget_present(self) -> None:
        """Count the present token as former after the cluster has refused all `tokens`.

        A join token then creates a new credential. Raise OSError if the file cannot be written.
        """
        if self._current:
            self._former = [self._current, *self._former][:FORMER_MAX]
            self._current, self._next = "", mint_token()
            self._store()

    def confirm(self) -> None:
        """Make the next token the present token, after the cluster has accepted the digest.

        Then delete the file of the join token. Raise OSError if a file cannot be changed.
        """
        if self._next:
            if self._current:
                self._former = [self._current, *self._former][:FORMER_MAX]
            self._current, self._next, self._since_ms = self._next, "", self._now_ms()
            self._store()
        if self._join_token is not None:
            self._join_token.unlink(missing_ok=True)

    def _store(self) -> None:
        content = {
            "current": self._current,
            "next": self._next,
            "since_ms": self._since_ms,
            "former": self._former,
        }
        _write_durably(self._path, json.dumps(content).encode())


def _write_durably(path: Path, content: bytes) -> None:
    """Replace a file by `content`, so that a power failure leaves the old or the new file.

    The new file is readable by its owner only. Raise OSError if the file cannot be written.
    """
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    with os.fdopen(os.open(fresh, flags, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
