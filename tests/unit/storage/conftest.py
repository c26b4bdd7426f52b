import errno
import os

import pytest


@pytest.fixture
def _no_hard_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse hard links, as some mounted file systems do."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
