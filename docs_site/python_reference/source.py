"""The sources of `detcloud` as griffe reads them, without an import of `detcloud`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import griffe

from docs_site.sources import REPOSITORY

PACKAGE = "detcloud"
HARNESS = REPOSITORY / "harness"
# A call as the value of an alias defines a new type, for example a TypeVar, which keeps the name.
_SHOWN_BY_NAME = griffe.ExprCall


class SourceProblem(Exception):
    """A docstring that griffe cannot read, or a name that does not exist."""


class Sources:
    """The classes and functions of the package, found by path."""

    def __init__(self, folder: Path = HARNESS, package: str = PACKAGE) -> None:
        self._package = package
        self._loader = griffe.GriffeLoader(
            search_paths=[folder],
            allow_inspection=False,
            docstring_parser=griffe.Parser.google,
            docstring_options={"returns_named_value": False, "returns_multiple_items": False},
        )
        self._loader.load(package, try_relative_path=False)
        self._loader.resolve_aliases(implicit=False, external=False)

    def find(self, path: str) -> griffe.Object:
        """Return the class, function or attribute with this path, wherever the path imports it.

        Raises:
            SourceProblem: the path does not exist.
        """
        try:
            found = self._loader.modules_collection[path]
            return found.final_target if isinstance(found, griffe.Alias) else found
        except (KeyError, griffe.AliasResolutionError, griffe.CyclicAliasError) as error:
            raise SourceProblem(f"{path}: no such name in the sources: {error!r}") from error

    def text_of(self, expression: str | griffe.Expr | None) -> str:
        """Return the source text of a type or a default, with aliases of types in full."""
        if expression is None or isinstance(expression, str):
            return expression or ""
        return "".join(map(self._token_text, expression.iterate(flat=True)))

    def classes_of(self, expression: str | griffe.Expr | None) -> tuple[str, ...]:
        """Return the paths of the package's classes in a type, in order, each once."""
        return tuple(dict.fromkeys(self._class_paths(expression)))

    def _class_paths(self, expression: str | griffe.Expr | None) -> Iterator[str]:
        if isinstance(expression, griffe.Expr):
            for token in expression.iterate(flat=True):
                found = self._target(token)
                if isinstance(found, griffe.Class):
                    yield found.canonical_path
                elif isinstance(found, griffe.Attribute):
                    yield from self._class_paths(found.value)

    def _token_text(self, token: str | griffe.Expr) -> str:
        found = self._target(token)
        if isinstance(found, griffe.Attribute) and not isinstance(found.value, _SHOWN_BY_NAME):
            return self.text_of(found.value) or str(token)
        return str(token)

    def _target(self, token: str | griffe.Expr) -> griffe.Object | None:
        """Return the class, or the attribute of a module, that a token names. None for others."""
        if not isinstance(token, griffe.ExprName):
            return None
        path = token.canonical_path
        if not path.startswith(f"{self._package}."):
            return None
        try:
            found = self.find(path)
        except SourceProblem:
            return None
        is_constant = isinstance(found, griffe.Attribute) and isinstance(
            found.parent, griffe.Module
        )
        return found if is_constant or isinstance(found, griffe.Class) else None


class ParserLog(logging.Handler):
    """Collects the warnings of griffe's docstring parser, which are errors of the reference."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())

    def __enter__(self) -> ParserLog:
        logging.getLogger("griffe").addHandler(self)
        return self

    def __exit__(self, *error: object) -> None:
        logging.getLogger("griffe").removeHandler(self)
