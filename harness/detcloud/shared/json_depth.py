"""The depth of JSON values. Parsers and encoders give up at depths of their own, so that each
reader and writer of what a trial says refuses what is deeper than all of them can take.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

# Objects and lists within each other: of a report, and of a configuration with the
# hyperparameters in it. A value of this depth is stored and answered inside a few more.
JSON_DEPTH_MAX = 64


def is_too_deep(value: object, depth_max: int = JSON_DEPTH_MAX) -> bool:
    """Whether objects and lists lie more than `depth_max` deep within each other."""
    level, depth = [value], 0
    while level := [container for container in level if isinstance(container, dict | list)]:
        depth += 1
        if depth > depth_max:
            return True
        level = [child for container in level for child in _children(container)]
    return False


def _children(container: dict[str, object] | list[object]) -> Iterable[object]:
    return container.values() if isinstance(container, dict) else container
