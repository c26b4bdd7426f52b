"""Signatures as Python code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import griffe

from docs_site.python_reference.source import Sources

LINE_CHARACTERS_MAX = 88
_KINDS = griffe.ParameterKind
_STARS: dict[griffe.ParameterKind | None, str] = {
    _KINDS.var_positional: "*",
    _KINDS.var_keyword: "**",
}
_SINGLE_QUOTES = re.compile(r"'([^'\"\\]*)'")


def signature_text(
    sources: Sources, name: str, parameters: Sequence[griffe.Parameter], returns: str | None
) -> str:
    """Return `name(parameters) -> returns`, on several lines if the line would be long.

    Args:
        sources: the sources, for aliases of types.
        name: the path of the function, or of a class.
        parameters: the parameters without `self`.
        returns: the type of the result; None for a class.
    """
    parts = list(_parts(sources, parameters))
    result = f" -> {returns}" if returns is not None else ""
    line = f"{name}({', '.join(parts)}){result}"
    if len(line) <= LINE_CHARACTERS_MAX:
        return line
    lines = "".join(f"    {part},\n" for part in parts)
    return f"{name}(\n{lines}){result}"


def _parts(sources: Sources, parameters: Sequence[griffe.Parameter]) -> Iterator[str]:
    """Yield the text of each parameter, and the markers `*` and `/`."""
    kind = None
    for parameter in parameters:
        if parameter.kind is _KINDS.keyword_only and kind not in (
            _KINDS.keyword_only,
            _KINDS.var_positional,
        ):
            yield "*"
        elif kind is _KINDS.positional_only and parameter.kind is not kind:
            yield "/"
        kind = parameter.kind
        yield _parameter(sources, parameter)


def _parameter(sources: Sources, parameter: griffe.Parameter) -> str:
    stars = _STARS.get(parameter.kind, "")
    type_text = sources.text_of(parameter.annotation)
    text = f"{stars}{parameter.name}" + (f": {type_text}" if type_text else "")
    if parameter.default is None or stars:
        return text
    equals = " = " if type_text else "="
    default = _SINGLE_QUOTES.sub(r'"\1"', sources.text_of(parameter.default))
    return f"{text}{equals}{default}"
