"""The limit on the depth of JSON values.

JSON parsers and encoders fail at different depths. All readers and writers of a trial's data
therefore refuse values above a common limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

# The nested objects and lists of a report, or of a configuration with hyperparameters. Stored rows
# and answers wrap a value into a few more levels.
JSON_DEPTH_MAX = 64


def is_too_deep(value: object, depth_max: int = JSON_DEPTH_MAX) -> bool:
    """Whether objects and lists are nested more than `depth_max` deep.

    A flat or empty list has depth 1, a text or number depth 0. Only dicts and lists count. A tuple
    is a plain value, whose items are not searched.
    """
    level, depth = [value], 0
    while level := [container for container in level if isinstance(container, dict | list)]:
        depth += 1
        if depth > depth_max:
            return True
        level = [child for container in level for child in _children(container)]
    return False


def _children(container: dict[str, object] | list[object]) -> Iterable[object]:
    return container.values() if isinstance(container, dict) else container
