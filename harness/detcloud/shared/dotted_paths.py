"""Dotted paths: texts of several names, for example `hyperparameters.optimizer.lr`.

Dots separate the names. A name with a dot or another ambiguous character is written in quotes:
`hyperparameters."model.layers"`. Double quotes enclose a JSON string, single quotes an unescaped
name. docs/configuration.md describes the form for users.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

FORM = "path.to.field=value"

_QUOTED = re.compile(r"""("(?:[^"\\]|\\.)*"|'[^']*')(?=[.=]|\Z)""", re.DOTALL)
_BARE = re.compile(r"[^.=]+")
# Other names are written in quotes.
_PLAIN = re.compile(r"[^\s.=\"'\[\]\\]+")


class PathInvalid(ValueError):
    """A text that is no valid or unique path. The message is a clause about the text."""


@dataclass(frozen=True)
class DottedPath:
    """A path as a user wrote it."""

    names: tuple[str, ...]
    """The names between the dots, without quotes."""
    quoted: tuple[bool, ...]
    """Whether each name was in quotes, in the order of `names`."""


def name_text(name: str) -> str:
    """Return a name as written in a path: in JSON quotes unless the name is plain.

    A plain name is not empty and contains no white space, dot, `=`, quote, bracket, backslash or
    unprintable character.
    """
    is_plain = _PLAIN.fullmatch(name) and name.isprintable()
    return name if is_plain else json.dumps(name, ensure_ascii=not name.isprintable())


def join_names(names: Iterable[str]) -> str:
    """Return the dotted path of names: ('model', 'a.b') -> 'model."a.b"'. "" without names."""
    return ".".join(map(name_text, names))


def nested_leaves(
    tree: Mapping[str, Any], above: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yield the path of names and the value of each leaf of nested maps.

    Leaves come in the order of the maps, depth first. A list is a leaf. An empty map is a leaf,
    except an empty `tree`. `above` is put in front of all paths.
    """
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from nested_leaves(value, (*above, name))
        else:
            yield (*above, name), value


def split_assignment(text: str) -> tuple[DottedPath, str]:
    """Split `a."b.c"=VALUE` into the path and the text after the first `=` outside quotes.

    Spaces before the path, and before the `=` after a name without quotes, are ignored. Spaces
    around dots belong to the names. The text after the `=` is returned unchanged and may be empty
    or contain further `=`.

    Raises:
        PathInvalid: the text has no `=` or an empty name, or a quote does not end at a dot or `=`.
    """
    names: list[str] = []
    quoted: list[bool] = []
    place = len(text) - len(text.lstrip())
    while True:
        name, is_quoted, place = _read_name(text, place)
        names.append(name)
        quoted.append(is_quoted)
        if place == len(text):
            raise PathInvalid(f"is not of the form {FORM}")
        if text[place] == "=":
            return DottedPath(tuple(names), tuple(quoted)), text[place + 1 :]
        place += 1


def resolve_path(path: DottedPath, trees: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the keys that a path means in the overlaid maps `trees`.

    Names without quotes may be parts of a single key: `model.layers` means the key "model.layers"
    if a tree has the key. Names in quotes are never joined. A path without such a reading means a
    key for each name, whether or not the keys exist. With such readings, a key for each name counts
    as a reading only if, for every such reading, a tree has the single name where that reading
    joins names.

    Raises:
        PathInvalid: several readings exist. The message lists an unambiguous text for each.
    """
    readings = list(_joined_readings(path, 0, trees))
    depth = _existing_depth(path.names, trees)
    # Without a reading that joins names, all() is true and the path means a key for each name.
    has_plain = all(depth > _first_joined(keys, path) for keys in readings)
    meanings = [*readings, *([path.names] if has_plain else [])]
    if len(meanings) == 1:
        return meanings[0]
    texts = " or ".join(_unmistakable_text(keys, path) for keys in meanings)
    raise PathInvalid(f"may mean several keys: write {texts}")


def _read_name(text: str, place: int) -> tuple[str, bool, int]:
    """Read the name at a place of the text.

    Return the name without quotes, whether quotes enclose the name, and the place after the name: a
    dot, a `=` or the end. Spaces at the end of a name without quotes are dropped before a `=` and
    at the end. Raise PathInvalid for an empty name or an invalid quote.
    """
    if text[place : place + 1] in ("'", '"'):
        found = _QUOTED.match(text, place)
        if found is None:
            raise PathInvalid(
                "has a quote that does not end before a dot or the =; "
                'write a name with dots as "model.layers", in quotes of the shell\'s own'
            )
        return _unquote(found[1]), True, found.end()
    found = _BARE.match(text, place)
    name = found[0] if found else ""
    end = place + len(name)
    if text[end : end + 1] == "=" or end == len(text):
        name = name.rstrip()
    if not name:
        raise PathInvalid(f"is not of the form {FORM}")
    return name, False, end


def _unquote(text: str) -> str:
    if text[0] == "'":
        name = text[1:-1]
    else:
        try:
            name = str(json.loads(text, strict=False))
        except ValueError as error:
            raise PathInvalid(f"has a name in quotes that is no JSON string: {error}") from None
    if not name:
        raise PathInvalid("has an empty name in quotes")
    return name


def _joined_readings(
    path: DottedPath, start: int, trees: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, ...]]:
    """Yield each reading of the names from `start` on in which a key joins several names.

    A reading is the tuple of keys. Every key exists in the trees, up to the last joining key. The
    keys after that are single names.
    """
    for end in range(start + 1, len(path.names) + 1):
        is_joined = end > start + 1
        if is_joined and any(path.quoted[start:end]):
            return
        key = ".".join(path.names[start:end])
        below = [tree[key] for tree in trees if key in tree]
        if not below:
            continue
        inner = [tree for tree in below if isinstance(tree, Mapping)]
        further = list(_joined_readings(path, end, inner))
        yield from ((key, *keys) for keys in further)
        if is_joined and not further:
            yield (key, *path.names[end:])


def _existing_depth(names: Sequence[str], trees: Sequence[Mapping[str, Any]]) -> int:
    """Count the names, from the first on, that exist in the trees as a key each.

    Each further name is searched in the maps that the name before leads to, in any tree.
    """
    for depth, name in enumerate(names):
        below = [tree[name] for tree in trees if name in tree]
        if not below:
            return depth
        trees = [tree for tree in below if isinstance(tree, Mapping)]
    return len(names)


def _first_joined(keys: Sequence[str], path: DottedPath) -> int:
    """Count the keys before the first key that joins several names.

    `keys` is a reading of `path`. Raise StopIteration if no key joins names.
    """
    return next(place for place, key in enumerate(keys) if key != path.names[place])


def _unmistakable_text(keys: Sequence[str], path: DottedPath) -> str:
    """Return the keys as a dotted path that `resolve_path` can read in no other way.

    `keys` is one of the readings of `path`. If a key joins several names, quote only keys that need
    quotes. If each name is a key, quote every key, because unquoted names might be joined.
    """
    if len(keys) < len(path.names):
        return join_names(keys)
    return ".".join(json.dumps(key, ensure_ascii=False) for key in keys)
