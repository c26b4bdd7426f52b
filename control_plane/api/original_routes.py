"""Routes of Determined's master that the command `det` of Determined requests first."""

from typing import Final

_PATHS: Final = frozenset({"/info", "/login", "/logout", "/api/v1/me", "/api/v1/master"})
_PREFIXES: Final = ("/api/v1/auth/", "/users", "/det/", "/proxy/", "/agents", "/tasks")

DETCLOUD_SENTENCE: Final = (
    "this is a detcloud cluster, which Determined's `det` cannot use: install detcloud, type "
    "`alias det=detcloud`, and read docs/migrating.md"
)


def is_original_route(path: str) -> bool:
    """Return whether Determined's clients request this path, which detcloud does not serve."""
    return path in _PATHS or path.startswith(_PREFIXES)
