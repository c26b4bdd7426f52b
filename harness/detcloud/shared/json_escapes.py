"""Escapes of JSON for characters that a terminal must not receive."""

from __future__ import annotations

import json


def json_escape(character: str) -> str:
    """Return the escape of an invisible character, as JSON writes the character in ASCII.

    A character beyond U+FFFF has two escapes, those of its surrogates. Line ends and tabs have
    JSON's short escapes of two characters. Visible ASCII characters are returned unchanged, except
    quotes and backslashes.
    """
    # The JSON encoder does not escape the delete character.
    return "\\u007f" if character == "\x7f" else json.dumps(character)[1:-1]
