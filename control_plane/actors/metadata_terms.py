"""Terms of metadata, by which searches find experiments and trials. An example is `data.version=3`.

A term is the path to a value, with dots between the keys, and the value as text. Equal numbers
below 1e15 have the same text, whatever their notation. Each item of a list counts as a value. A
path or value over the length limits of filters has no term, so no filter finds it.

A term is stored without quotes: `a.b=1` stands for the nested keys `a` and `b` and for the key
"a.b".
"""

import json
from collections.abc import Iterator, Mapping
from hashlib import sha256

from control_plane.rows import experiment_rows
from detcloud.shared.dotted_paths import FORM, PathInvalid, split_assignment

KEY_CHARACTERS_MAX = 200
"""The most characters of a path."""
VALUE_CHARACTERS_MAX = 200
"""The most characters of a value's text."""
TERMS_MAX = 30
"""The most terms of an experiment's metadata. Each term is a row that a change writes."""


def metadata_terms(metadata: Mapping[str, object]) -> frozenset[str]:
    """Return the terms of metadata that consists of JSON values.

    Values with an empty or too long path, or a too long text, have no term. Empty metadata has
    none.
    """
    return frozenset(
        f"{key}={value}"
        for key, value in _leaves("", metadata)
        if 0 < len(key) <= KEY_CHARACTERS_MAX and len(value) <= VALUE_CHARACTERS_MAX
    )


def parse_term(text: str) -> str:
    """Return the term of a filter `KEY=VALUE` of a user.

    The key has the form of detcloud.shared.dotted_paths: `"a.b"=1` finds the same as `a.b=1`.

    Raises:
        ValueError: the text is no filter, is too long, or has an unprintable character. The message
            is the predicate of a sentence.
    """
    try:
        path, value = split_assignment(text)
    except PathInvalid as error:
        example = "KEY=VALUE, such as data.version=3"
        raise ValueError(f"must be {example}" if FORM in str(error) else str(error)) from None
    key = ".".join(path.names)
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
    """Return the partition of a term: a fixed start and the term's SHA-256 digest.

    The partition has a row for each experiment with the term.
    """
    digest = sha256(term.encode("utf-8", "surrogatepass")).hexdigest()
    return experiment_rows.METADATA_TERM.partition_of(digest)


def _leaves(path: str, value: object) -> Iterator[tuple[str, str]]:
    """Iterate over the path and the text of each value that is neither a mapping nor a list.

    Strings are their own text, and other values have their JSON text. Items of a list share the
    list's path.
    """
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(f"{path}.{key}" if path else str(key), inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _leaves(path, inner)
    else:
        yield path, _number_text(value if isinstance(value, str) else json.dumps(value))


def _number_text(text: str) -> str:
    """Return the text of a value. Texts of equal numbers below 1e15 become the same text.

    Every text that `float` accepts is a number, so infinity and NaN become "inf" and "nan". From
    1e15 on, integers and floats keep different texts. Any other text, and a text above
    VALUE_CHARACTERS_MAX, is returned unchanged.
    """
    if len(text) > VALUE_CHARACTERS_MAX or not text[:1].strip("+-.").isascii():
        return text
    try:
        number = float(text) if not text.lstrip("-").isdigit() else int(text)
    except ValueError:
        return text
    return str(int(number)) if number == number // 1 and abs(number) < 1e15 else str(number)
