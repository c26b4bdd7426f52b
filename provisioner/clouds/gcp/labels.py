"""The reversible encoding of instance tags as Compute Engine labels.

A label allows up to 63 lowercase letters, digits, `_` and `-`. Each other byte of a tag is escaped
as `_` and two hexadecimal digits. A longer value continues in labels with numbered keys. A tag that
needs neither is stored unchanged.
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
    """Encode tags as labels; a long tag becomes several labels `KEY`, `KEY-1`, `KEY-2`.

    In values, each byte other than lowercase letters, digits and `-` becomes `_` and two
    hexadecimal digits. A part has up to VALUE_CHARACTERS_MAX characters. Keys are not encoded or
    checked.
    """
    labels = {}
    for key, text in tags.items():
        value = "".join(chr(code) if code in _PLAIN else f"_{code:02x}" for code in text.encode())
        parts = range(0, max(1, len(value)), VALUE_CHARACTERS_MAX)
        for number, first in enumerate(parts):
            labels[_part_key(key, number)] = value[first : first + VALUE_CHARACTERS_MAX]
    return labels


def from_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return an instance's tags: OWN_TAGS decoded from labels, and other labels unchanged.

    An own tag without a label is absent. The labels of a long tag are joined, and absent
    themselves. Invalid escapes stay, and bytes that are not valid UTF-8 are replaced.
    """
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
    """Return the filter of a list request for instances with all of the given labels.

    Return "", which filters nothing, without labels. A filter by a full part of a long tag also
    matches longer tags, so the caller compares the decoded tags.
    """
    return " ".join(f'(labels.{key} = "{value}")' for key, value in labels.items())


def _part_key(key: str, number: int) -> str:
    """Return the key of a part of a tag; the first part, 0, has the tag's own key."""
    return f"{key}-{number}" if number else key


def _unescape(value: str) -> str:
    """Decode the text of a tag; bytes that are not valid UTF-8 are replaced.

    A `_` without two lowercase hexadecimal digits stays.
    """
    data = _ESCAPE.sub(lambda match: chr(int(match[1], 16)), value)
    return data.encode("latin-1", "replace").decode("utf-8", "replace")
