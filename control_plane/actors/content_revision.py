"""Revisions of what people edit: a text that is another one whenever the content is."""

import json
from hashlib import sha256

# 64 bits: two contents of one thing never have the same by chance.
_DIGITS = 16


def content_revision(content: object) -> str:
    """The revision of a value of JSON, in which the order of keys counts for nothing."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()[:_DIGITS]


def find_changed_since(what: str, present: str, expected: str | None) -> str:
    """The error for a change of what has another revision than its changer saw; empty without."""
    if expected is None or present == expected:
        return ""
    text = f"{what} was changed in the meantime: it has revision {present}, not {expected!a:.40}"
    return f"{text}; read it again and retry"
