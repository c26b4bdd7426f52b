"""Terms of metadata: what a search finds an experiment or a trial by, such as `data.version=3`.

A term is a value's path, the keys with dots between them, and the value as text. Numbers that are
equal have the same text, however they are written; of a list each item is a value. What is longer
than a filter may be has no term, and so is found by none.
"""

import json
from collections.abc import Iterator, Mapping
from hashlib import sha256

KEY_CHARACTERS_MAX = 200
VALUE_CHARACTERS_MAX = 200
TERMS_MAX = 30
"""Terms of an experiment's metadata: each is a row that its change writes."""


def metadata_terms(metadata: Mapping[str, object]) -> frozenset[str]:
    """Return the terms of metadata, which hold values of JSON."""
    return frozenset(
        f"{key}={value}"
        for key, value in _leaves("", metadata)
        if 0 < len(key) <= KEY_CHARACTERS_MAX and len(value) <= VALUE_CHARACTERS_MAX
    )


def parse_term(text: str) -> str:
    """Return the term of a filter `key=value`; ValueError, with what is wrong, for any other."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ValueError("must be KEY=VALUE, such as data.version=3")
    for what, part, most in (
        ("key", key, KEY_CHARACTERS_MAX),
        ("value", value, VALUE_CHARACTERS_MAX),
    ):
        if len(part) > most:
            raise ValueError(f"has a {what} of {len(part):,} characters; at most {most} are found")
        if not part.isprintable():
            raise ValueError(f"has a {what} with a character that cannot be printed")
    return f"{key}={_number_text(value)}"


def metadata_partition(term: str) -> str:
    """The partition with a row for each experiment that has this term, by its id."""
    return f"experiments-by-metadata#{sha256(term.encode('utf-8', 'surrogatepass')).hexdigest()}"


def _leaves(path: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(f"{path}.{key}" if path else str(key), inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _leaves(path, inner)
    else:
        yield path, _number_text(value if isinstance(value, str) else json.dumps(value))


def _number_text(text: str) -> str:
    """The text of a value; of a number one that is the same for all that equal it."""
    if len(text) > VALUE_CHARACTERS_MAX or not text[:1].strip("+-.").isascii():
        return text
    try:
        number = float(text) if not text.lstrip("-").isdigit() else int(text)
    except ValueError:
        return text
    return str(int(number)) if number == number // 1 and abs(number) < 1e15 else str(number)
