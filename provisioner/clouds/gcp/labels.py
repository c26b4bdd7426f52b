"""Tags of instances as labels of Compute Engine, which allow 63 lowercase letters, digits, _ and -.

A tag's text is written so that it can be read again: other characters are escaped as `_` and the
digits of their bytes, and what does not fit into one label goes on in those of numbered keys. A
text that needs neither is its own label.
"""

import re
from collections.abc import Mapping
from typing import Final

from provisioner.clouds.provider import CLUSTER_TAG, INTENT_TAG, POOL_TAG

VALUE_CHARACTERS_MAX: Final = 63
OWN_TAGS: Final = (CLUSTER_TAG, POOL_TAG, INTENT_TAG)

_PLAIN: Final = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-")
_ESCAPE: Final = re.compile(r"_([0-9a-f]{2})")


def to_labels(tags: Mapping[str, str]) -> dict[str, str]:
    """The labels that tags of ours are written as."""
    labels = {}
    for key, text in tags.items():
        value = "".join(chr(code) if code in _PLAIN else f"_{code:02x}" for code in text.encode())
        parts = range(0, max(1, len(value)), VALUE_CHARACTERS_MAX)
        for number, first in enumerate(parts):
            labels[_part_key(key, number)] = value[first : first + VALUE_CHARACTERS_MAX]
    return labels


def from_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """The tags that an instance's labels are: ours as they were, and others as they are."""
    tags, parts = {}, set()
    for key in OWN_TAGS:
        if key not in labels:
            continue
        value, number = "", 0
        while (part := _part_key(key, number)) in labels:
            value += labels[part]
            parts.add(part)
            number += 1
        tags[key] = _unescape(value)
    others = {key: value for key, value in labels.items() if key not in parts}
    return {**others, **tags}


def label_filter(labels: Mapping[str, str]) -> str:
    """The filter of a list for instances that have all these labels."""
    return " ".join(f'(labels.{key} = "{value}")' for key, value in labels.items())


def _part_key(key: str, number: int) -> str:
    return f"{key}-{number}" if number else key


def _unescape(value: str) -> str:
    data = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), value)
    return data.encode("latin-1", "replace").decode("utf-8", "replace")
