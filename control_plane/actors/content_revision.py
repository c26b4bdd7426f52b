"""Revisions of content that users edit. Different content has a different revision."""

import json
from hashlib import sha256

# 64 bits, so that different versions of some content never get an equal revision by chance.
_DIGITS = 16


def content_revision(content: object) -> str:
    """Return the revision of a JSON value: 16 hexadecimal digits. The order of keys does not
    matter.

    Raises:
        TypeError: the content is not JSON.
    """
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()[:_DIGITS]


def find_changed_since(what: str, present: str, expected: str | None) -> str:
    """Return an error text if the present revision of an object differs from the expected revision.

    Return "" if the revisions are equal, or `expected` is None. No error is raised.

    Args:
        what: The name of the changed object, the subject of the message.
        present: The revision of the object now.
        expected: The revision that the user's change is based on. None accepts every revision.
    """
    if expected is None or present == expected:
        return ""
    text = f"{what} was changed in the meantime: it has revision {present}, not {expected!a:.40}"
    return f"{text}; read it again and retry"
