"""The sources of the fields of a configuration's models.

The text of a field is the string below the field in the source of the model. Python discards these
strings, so this module parses the source.
"""

from __future__ import annotations

import ast
import inspect
import sys
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from control_plane.config.section import Section
from control_plane.paragraphs import joined_paragraphs
from control_plane.searchers.options import OptionGroup


class FieldSource(NamedTuple):
    """A field in the source of the class `owner`, with the string below as the meaning."""

    owner: str
    annotation: str
    meaning: str


def find_field_source(model: type[Section], name: str) -> FieldSource:
    """Return the source of a field in the first class of the MRO with a meaning for the field.

    Raise LookupError if no class has a meaning. The field `type` needs none.
    """
    for cls in model.__mro__:
        found = _fields(cls).get(name)
        if found is not None and (found.meaning or name == "type"):
            return found
    raise LookupError(f"{model.__name__}.{name} has no meaning: write it below the field")


@cache
def _fields(cls: type) -> dict[str, FieldSource]:
    """Return the sources of the fields that the class itself declares, by name. Cached.

    Return {} for a class that is neither a section nor an option group.
    """
    if not issubclass(cls, (Section, OptionGroup)):
        return {}
    found = {}
    body = [*_class_tree(cls).body, None]
    for statement, after in pairwise(body):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            annotation = ast.unparse(_without_checks(statement.annotation))
            found[statement.target.id] = FieldSource(cls.__name__, annotation, _text(after))
    return found


def _without_checks(annotation: ast.expr) -> ast.expr:
    """Return the bare type inside an `Annotated`, or any other annotation unchanged."""
    match annotation:
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[bare, *_])):
            return bare
        case _:
            return annotation


def _text(statement: ast.stmt | None) -> str:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return joined_paragraphs(str(statement.value.value)).replace("|", "\\|")
    return ""


def _class_tree(cls: type) -> ast.ClassDef:
    module = sys.modules[cls.__module__]
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ClassDef) and node.name == cls.__name__:
            return node
    raise LookupError(f"{cls.__name__} is not at the top of {cls.__module__}")
