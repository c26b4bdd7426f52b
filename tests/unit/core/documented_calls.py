"""The signatures and examples of docs/training-reference.md, for tests that compare the code.

A block of `pyi` has signatures; a comment names the owner of the signatures that follow. A block of
`python` is an example.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tests.unit.house.rules import ROOT

REFERENCE = ROOT / "docs" / "training-reference.md"


class Signature(NamedTuple):
    """A documented signature."""

    owner: str
    """The object with the method: `context.train`, or the module `core` for a function."""
    name: str
    parameters: str
    """The parameters as Python prints them, without types: `(name, frequency=1)`."""


def documented_signatures(section: str) -> list[Signature]:
    """Return the signatures below a heading of the second level."""
    return [signature for block in _blocks(section, "pyi") for signature in _signatures(block)]


def documented_examples(section: str) -> list[str]:
    """Return the examples below a heading of the second level."""
    return _blocks(section, "python")


def differences(section: str, owners: Mapping[str, Any]) -> list[str]:
    """Return a line for each signature of the section that differs from the code.

    `owners` has the object or class of each owner by the owner's name on the page.
    """
    found = []
    for owner, name, documented in documented_signatures(section):
        actual = parameters_text(inspect.signature(getattr(owners[owner], name)))
        if documented != actual:
            found.append(f"{owner}.{name}{documented} is {actual} in the code")
    return found


def parameters_text(signature: inspect.Signature) -> str:
    """Return the parameters without types, and without `self` and `cls`."""
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty, default=_plain(parameter.default))
        for parameter in signature.parameters.values()
        if parameter.name not in ("self", "cls")
    ]
    return str(inspect.Signature(parameters))


class _Text(str):
    """A default that is printed without quotes, such as `AlertLevel.INFO`."""

    def __repr__(self) -> str:
        return str(self)


def _plain(default: Any) -> Any:
    """Return the source text of an enum's member. Return other values unchanged."""
    kind = type(default)
    return _Text(f"{kind.__name__}.{default.name}") if hasattr(default, "name") else default


def _blocks(section: str, language: str) -> list[str]:
    text = REFERENCE.read_text(encoding="utf-8").split(f"\n## {section}\n")[1]
    text = re.split(r"^## ", text, flags=re.MULTILINE)[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def _signatures(block: str) -> Iterator[Signature]:
    parts = re.split(r"^# (\S+)\n", block, flags=re.MULTILINE)
    for owner, code in zip(parts[1::2], parts[2::2], strict=True):
        for node in ast.parse(code).body:
            assert isinstance(node, ast.FunctionDef)
            yield Signature(owner, node.name, _parameters(node.args))


def _parameters(arguments: ast.arguments) -> str:
    for argument in ast.walk(arguments):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    return f"({ast.unparse(arguments)})"
