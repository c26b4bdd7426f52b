"""A parser for YAML that may be hostile. It returns plain values with their lines.

The parser reads the text as a stream of events, so that it can check the limits before it builds
values. Differences from PyYAML: keys are always texts (`on:` is "on"), `1e-3` is a number, and
dates stay texts. `<<` merges maps.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from control_plane.config.problems import ConfigInvalid, Problem
from control_plane.findings import Finding, Loc, path_text
from control_plane.storable_text import TEXT_FAULT, is_storable_text
from detcloud.shared.json_depth import JSON_DEPTH_MAX

BYTES_MAX: Final = 1 << 20
DEPTH_MAX: Final = JSON_DEPTH_MAX
VALUES_MAX: Final = 100_000
INTEGER_MIN: Final = -(1 << 63)
INTEGER_MAX: Final = (1 << 64) - 1

INTEGER: Final = re.compile(r"[-+]?(0b[01_]+|0x[0-9a-fA-F_]+|0o?[0-7_]+|0|[1-9][0-9_]*)\Z")
FLOAT: Final = re.compile(
    r"[-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)([eE][-+]?[0-9]+)?\Z"
    r"|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+\Z"
    r"|[-+]?\.(inf|Inf|INF)\Z|\.(nan|NaN|NAN)\Z"
)
_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEANS: Final = {
    spelling: value
    for words, value in (("yes true on", True), ("no false off", False))
    for word in words.split()
    for spelling in (word, word.capitalize(), word.upper())
}
_INNER_BREAKS: Final = "\x85\u2028\u2029"
_BREAK: Final = re.compile(rf"\r\n|[\n\r{_INNER_BREAKS}]")
_Mark = Any
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """The line of a value, with the places of nested values."""

    line: int
    """The line in the file, from 1. For a value in a map, the line of its key."""
    children: Mapping[str | int, SourcePlace] = field(default_factory=dict)
    """The places of the entries of a map or list, by key or index."""


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed YAML document."""

    tree: object
    """The plain values: maps, lists, texts, numbers, booleans and None."""
    place: SourcePlace
    """The lines of the values."""
    findings: tuple[Finding, ...] = ()
    """The faults of single values, for example tags and duplicate keys. `tree` nevertheless
    contains these values; of a duplicate key, `tree` contains the first value.
    """


def parse_document(text: str) -> Document:
    """Return the YAML document in `text`. An empty text is a document with None on line 1.

    Values that aliases repeat are shared, not copied. Faults of single values are findings of the
    document, not errors.

    Raises:
        ConfigInvalid: the text is not valid Unicode or YAML, has several documents, or has a key
            that is not a plain text, or an alias that is unknown or contains itself. Also raised
            above BYTES_MAX bytes, VALUES_MAX values with the repetitions of aliases, or DEPTH_MAX
            levels.
    """
    _check_text(text)
    lines = _file_lines(text)
    builder = _Builder(yaml.parse(text, Loader=_LOADER), lines)
    try:
        return builder.build_document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        # YAML may report an error after the last line break, where the file has no line.
        ends_in_break = text.endswith(("\n", "\r"))
        line = None if mark is None else min(lines.number(mark), lines.last - ends_in_break)
        raise _unreadable(error.problem or "", line) from None
    except yaml.reader.ReaderError as error:
        line = text[: text.index(chr(error.character))].count("\n") + 1
        name = f"the control character U+{error.character:04X}"
        raise _unreadable(f"{name} is not allowed", line) from None


def line_of(place: SourcePlace, loc: Loc) -> tuple[int | None, bool]:
    """Return the line of a value, and whether the whole path exists.

    If only a part of the path exists, return the line of the deepest existing part and False. The
    line is None if the first key does not exist, and for the root, the path ().
    """
    line: int | None = None
    for key in loc:
        child = place.children.get(key)
        if child is None:
            return line, False
        place, line = child, child.line
    return line, True


def parse_scalar(text: str) -> object:
    """Return the value of an unquoted YAML scalar: None, a boolean, a number, or `text`.

    A number of more than 400 characters becomes infinity.
    """
    if text in _NULLS:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if len(text) > 400:
        return math.inf if INTEGER.match(text) or FLOAT.match(text) else text
    try:
        if INTEGER.match(text):
            return _parse_integer(text.replace("_", ""))
        if FLOAT.match(text):
            return float(text.replace(".", "") if text[-1].isalpha() else text.replace("_", ""))
    except ValueError:  # only underscores after a prefix
        return text
    return text


def _parse_integer(text: str) -> int:
    digits = text.lstrip("+-")
    octal = len(digits) > 1 and digits[0] == "0" and digits[1].isdigit()
    value = int(digits, 8) if octal else int(digits, 0)
    return -value if text[0] == "-" else value


@dataclass(frozen=True, slots=True)
class _FileLines:
    """The mapping from YAML's lines to a file's lines. YAML knows more line breaks than editors."""

    shifts: tuple[int, ...]
    """The YAML lines, from 0, that begin inside a line of the file, in ascending order."""
    last: int
    """The number of the last line of the file, from 1."""

    def number(self, mark: _Mark) -> int:
        """Return the number, from 1, of the file's line at the PyYAML position `mark`."""
        return int(mark.line) + 1 - bisect_right(self.shifts, int(mark.line))


def _file_lines(text: str) -> _FileLines:
    breaks = [match[0] for match in _BREAK.finditer(text)]
    shifts = tuple(n + 1 for n, one in enumerate(breaks) if one in _INNER_BREAKS)
    return _FileLines(shifts, len(breaks) - len(shifts) + 1)


def _check_text(text: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise _unreadable("the text is not valid Unicode", None) from None
    if size > BYTES_MAX:
        message = f"has more than the {BYTES_MAX} bytes allowed"
        raise ConfigInvalid([Problem("", None, None, message)])


def _unreadable(reason: str, line: int | None) -> ConfigInvalid:
    hint = "indent with spaces, not tabs" if "\\t" in reason or "any token" in reason else ""
    return ConfigInvalid([Problem("", line, None, f"is not valid YAML: {reason}", hint)])


_Event = Any
"""An event of PyYAML. The stubs of PyYAML declare no types for most attributes."""


@dataclass(slots=True)
class _Node:
    """A built value, with the sizes that the limits need."""

    value: object
    place: SourcePlace
    size: int = 1
    """The number of values, nested values and the repetitions of aliases included."""
    height: int = 0
    """The number of levels below the value. 0 for a scalar and for an empty map or list."""


class _Builder:
    """The builder of a document from PyYAML's events, depth first."""

    def __init__(self, events: Iterator[_Event], lines: _FileLines) -> None:
        self.events = events
        self.lines = lines
        self.anchors: dict[str, _Node | None] = {}
        self.values = 0
        self.findings: list[Finding] = []

    def build_document(self) -> Document:
        """Return the document of the whole stream. A stream without a document contains None.

        Raises:
            ConfigInvalid: the stream has several documents or exceeds a limit. Also raised for
                invalid aliases and keys.
            yaml.YAMLError: the text is not valid YAML.
        """
        root = _Node(None, SourcePlace(1))
        documents = 0
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise self._refusal(event, (), "contains more than one YAML document")
                root = self._build_node(next(self.events), ())
        return Document(root.value, root.place, tuple(self.findings))

    def _build_node(self, event: _Event, loc: Loc) -> _Node:
        if isinstance(event, yaml.AliasEvent):
            return self._check_limits(event, loc, self._resolve_alias(event, loc))
        if event.tag is not None:
            line = self.lines.number(event.start_mark)
            hint = f"on line {line}; quote a value to make it a string"
            self.findings.append(
                Finding(loc, f"has the tag {event.tag}; tags are not allowed", hint)
            )
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        node = self._check_limits(event, loc, self._build_value(event, loc))
        if event.anchor is not None:
            self.anchors[event.anchor] = node
        return node

    def _resolve_alias(self, event: _Event, loc: Loc) -> _Node:
        if event.anchor not in self.anchors:
            raise self._refusal(event, loc, f"the alias *{event.anchor} refers to no anchor")
        node = self.anchors[event.anchor]
        if node is None:
            raise self._refusal(event, loc, f"the alias *{event.anchor} contains itself")
        self.values += node.size - 1
        return node

    def _check_limits(self, event: _Event, loc: Loc, node: _Node) -> _Node:
        self.values += 1
        if self.values > VALUES_MAX:
            message = f"contains more than {VALUES_MAX} values, counting what aliases repeat"
            raise self._refusal(event, (), message)
        if len(loc) + node.height > DEPTH_MAX:
            raise self._refusal(event, (), f"is nested deeper than {DEPTH_MAX} levels")
        return node

    def _build_value(self, event: _Event, loc: Loc) -> _Node:
        if len(loc) > DEPTH_MAX:
            raise self._refusal(event, (), f"is nested deeper than {DEPTH_MAX} levels")
        if isinstance(event, yaml.SequenceStartEvent):
            return self._build_list(event, loc)
        if isinstance(event, yaml.MappingStartEvent):
            return self._build_map(event, loc)
        plain = event.style in (None, "")
        value = parse_scalar(event.value) if plain else event.value
        self._check_scalar(value, loc)
        return _Node(value, SourcePlace(self.lines.number(event.start_mark)))

    def _build_list(self, start: _Event, loc: Loc) -> _Node:
        nodes: list[_Node] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            nodes.append(self._build_node(event, (*loc, len(nodes))))
        places = dict[str | int, SourcePlace](enumerate(node.place for node in nodes))
        place = SourcePlace(self.lines.number(start.start_mark), places)
        return _parent_node(nodes, [node.value for node in nodes], place)

    def _build_map(self, start: _Event, loc: Loc) -> _Node:
        nodes: dict[str, _Node] = {}
        merges: list[_Node] = []
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            line = self.lines.number(event.start_mark)
            key = self._parse_key(event, loc)
            node = self._build_node(next(self.events), (*loc, key))
            if key == "<<" and event.style in (None, ""):
                merges.append(node)
            elif key in nodes:
                first = nodes[key].place.line
                hint = f"keep one of lines {first} and {line}"
                self.findings.append(Finding((*loc, key), "is given twice", hint))
            else:
                nodes[key] = _Node(
                    node.value, SourcePlace(line, node.place.children), node.size, node.height
                )
        for merge in merges:
            self._merge_keys(nodes, merge, loc)
        places: dict[str | int, SourcePlace] = {key: node.place for key, node in nodes.items()}
        tree = {key: node.value for key, node in nodes.items()}
        return _parent_node(
            [*nodes.values()], tree, SourcePlace(self.lines.number(start.start_mark), places)
        )

    def _parse_key(self, event: _Event, loc: Loc) -> str:
        if not isinstance(event, yaml.ScalarEvent) or event.tag is not None:
            raise self._refusal(event, loc, "has a key that is not a plain string")
        self._check_scalar(event.value, (*loc, "?"))
        return str(event.value)

    def _merge_keys(self, nodes: dict[str, _Node], merge: _Node, loc: Loc) -> None:
        """Add the keys of the map, or the list of maps, under a key `<<` to `nodes`.

        Existing keys stay, and earlier maps of the list come first. A value that is not a map adds
        a finding instead.
        """
        sources = merge.value if isinstance(merge.value, list) else [merge.value]
        places = [merge.place.children.get(n) for n in range(len(sources))]
        for source, place in zip(sources, places, strict=True):
            holder = (place or merge.place) if isinstance(merge.value, list) else merge.place
            if not isinstance(source, dict):
                self.findings.append(Finding((*loc, "<<"), "must be a map or a list of maps"))
                continue
            size = max(1, merge.size // max(1, len(source)))
            for key, value in source.items():
                child = _Node(value, holder.children[key], size, max(0, merge.height - 1))
                nodes.setdefault(key, child)

    def _check_scalar(self, value: object, loc: Loc) -> None:
        message = _scalar_refusal(value)
        if message:
            self.findings.append(Finding(loc, message))

    def _refusal(self, event: _Event, loc: Loc, message: str) -> ConfigInvalid:
        line = self.lines.number(event.start_mark)
        return ConfigInvalid([Problem(path_text(loc), line, None, message)])


def _parent_node(nodes: list[_Node], value: object, place: SourcePlace) -> _Node:
    size = 1 + sum(node.size for node in nodes)
    height = 1 + max((node.height for node in nodes), default=-1)
    return _Node(value, place, size, height)


def _scalar_refusal(value: object) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "must be a finite number"
    if isinstance(value, int) and not INTEGER_MIN <= value <= INTEGER_MAX:
        return "is an integer beyond 64 bits"
    if isinstance(value, str) and not is_storable_text(value):
        return TEXT_FAULT
    return ""
