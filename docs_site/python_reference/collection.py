"""Collects the entries of the reference from the sources and the examples."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

import griffe

from docs_site.python_reference.entries import Described, Entry
from docs_site.python_reference.signatures import signature_text
from docs_site.python_reference.source import PACKAGE, SourceProblem, Sources
from docs_site.python_reference.subjects import Subject

# Classes of handles read their fields from the cluster's answer: `id = Field[int]("The id.")`.
FIELD = "Field"
_TEXT_KINDS = (griffe.DocstringSectionKind.text, griffe.DocstringSectionKind.admonition)
_IGNORED_KINDS = (griffe.DocstringSectionKind.attributes,)


@dataclass
class Docstring:
    """The sections of a docstring."""

    text: str = ""
    parameters: dict[str, str] = field(default_factory=dict)
    returns: str = ""
    errors: list[Described] = field(default_factory=list)


@dataclass
class Collector:
    """Collects entries."""

    sources: Sources
    documented: frozenset[str]
    """The canonical paths of all classes with an entry of their own."""
    package: str = PACKAGE
    """The package whose base classes give members to a class."""

    def entry(self, subject: Subject, cells: dict[str, list[str]]) -> Entry:
        """Return the entry of a class or function, with examples of `cells` by title."""
        found = self.sources.find(subject.path)
        if isinstance(found, griffe.Class):
            return self._class(found, subject, cells)
        if isinstance(found, griffe.Function):
            return self._function(found, subject.shown or subject.path, subject.title, cells)
        return self._alias(found, subject, cells)

    def _class(self, found: griffe.Class, subject: Subject, cells: dict[str, list[str]]) -> Entry:
        docstring = self._docstring(found)
        constructor = found.all_members.get("__init__") if subject.is_created else None
        parameters: list[Described] = []
        signature = ""
        if subject.is_created:
            own = [parameter for parameter in found.parameters if parameter.name != "self"]
            signature = "class " + signature_text(
                self.sources, subject.shown or subject.path, own, None
            )
            if constructor is not None and "dataclass" not in found.labels:
                docstring = _merge(docstring, self._docstring(_target(constructor)))
            parameters = self._parameters(own, docstring)
        return Entry(
            subject.shown or subject.path,
            subject.title,
            "class",
            signature,
            docstring.text,
            bases=[path for path in _base_paths(found) if path in self.documented],
            parameters=[] if "dataclass" in found.labels else parameters,
            errors=docstring.errors,
            fields=list(self._fields(found, subject)),
            members=list(self._methods(found, subject, cells)),
            examples=cells.get(subject.title, []),
        )

    def _function(
        self, found: griffe.Function, path: str, title: str, cells: dict[str, list[str]]
    ) -> Entry:
        docstring = self._docstring(found)
        own = [parameter for parameter in found.parameters if parameter.name not in ("self", "cls")]
        if "staticmethod" not in found.labels and found.parent and found.parent.is_class:
            own = [p for p in found.parameters][1:]
        returns = self._return_text(found)
        decorators = {str(decorator.value).partition("(")[0] for decorator in found.decorators}
        prefix = "classmethod " if "classmethod" in decorators else ""
        name = path if not found.parent or not found.parent.is_class else title
        return Entry(
            path,
            title,
            "function",
            prefix + signature_text(self.sources, name, own, returns),
            docstring.text,
            parameters=self._parameters(own, docstring),
            returns=Described("", returns, docstring.returns, self._returned_classes(found))
            if returns != "None"
            else None,
            errors=docstring.errors,
            examples=cells.get(title, []),
        )

    def _alias(self, found: griffe.Object, subject: Subject, cells: dict[str, list[str]]) -> Entry:
        assert isinstance(found, griffe.Attribute), subject.path
        signature = f"{subject.path} = {self.sources.text_of(found.value)}"
        return Entry(
            subject.path,
            subject.title,
            "class",
            signature,
            self._docstring(found).text,
            examples=cells.get(subject.title, []),
        )

    def _methods(
        self, found: griffe.Class, subject: Subject, cells: dict[str, list[str]]
    ) -> Iterator[Entry]:
        for name, member in self._members(found):
            # A second name of a method: `on = start_measuring`.
            if isinstance(member, griffe.Attribute) and isinstance(member.value, griffe.ExprName):
                member = _target(found.all_members.get(member.value.name, member))
            if not isinstance(member, griffe.Function) or name in subject.internal:
                continue
            # Methods without a docstring replace a method of a framework or of a base class.
            if member.docstring is not None or subject.shows_all:
                yield self._function(
                    member, f"{subject.path}.{name}", f"{subject.title}.{name}", cells
                )

    def _fields(self, found: griffe.Class, subject: Subject) -> Iterator[Described]:
        is_record = "dataclass" in found.labels or _is_a(found, "TypedDict", "Enum", "StrEnum")
        for name, member in self._members(found):
            if not isinstance(member, griffe.Attribute) or name in subject.internal:
                continue
            if (handle_field := self._handle_field(name, member)) is not None:
                yield handle_field
            elif self._has_field(member, subject, is_record):
                text = self._docstring(member).text
                yield self._describe(name, member.annotation, text)

    def _has_field(self, member: griffe.Attribute, subject: Subject, is_record: bool) -> bool:
        """Return whether the page has an attribute: described, or in a record or of a property."""
        if member.docstring is not None:
            return True
        if subject.shows_all and "property" in member.labels:
            return True
        return is_record and not subject.shows_described

    def _handle_field(self, name: str, member: griffe.Attribute) -> Described | None:
        """Return the field of a handle, such as `id = Field[int]("The id.")`. None for others."""
        value = member.value
        if not isinstance(value, griffe.ExprCall) or not isinstance(
            value.function, griffe.ExprSubscript
        ):
            return None
        if str(value.function.left) != FIELD:
            return None
        text = "".join(ast.literal_eval(str(argument)) for argument in value.arguments)
        return self._describe(name, value.function.slice, text)

    def _describe(self, name: str, type: str | griffe.Expr | None, text: str) -> Described:
        return Described(name, self.sources.text_of(type), text, self.sources.classes_of(type))

    def _members(self, found: griffe.Class) -> Iterator[tuple[str, griffe.Object]]:
        """Yield the public members: own members, then those of bases without an own entry."""
        seen = set[str]()
        classes = [found]
        for base in found.mro() if found.resolved_bases else []:
            if base.canonical_path in self.documented:
                break
            if base.canonical_path.startswith(f"{self.package}."):
                classes.append(base)
        for owner in classes:
            for name, member in owner.members.items():
                if not name.startswith("_") and name not in seen:
                    seen.add(name)
                    yield name, _target(member)

    def _parameters(
        self, parameters: list[griffe.Parameter], docstring: Docstring
    ) -> list[Described]:
        unknown = docstring.parameters.keys() - {p.name for p in parameters}
        if unknown:
            raise SourceProblem(f"Args of a docstring name no parameters: {', '.join(unknown)}")
        return [
            self._describe(p.name, p.annotation, docstring.parameters.get(p.name, ""))
            for p in parameters
        ]

    def _return_text(self, found: griffe.Function) -> str:
        text = self.sources.text_of(found.returns) or "None"
        if any(str(decorator.value) == "contextmanager" for decorator in found.decorators):
            return text.replace("Iterator[", "ContextManager[", 1)
        return text

    def _returned_classes(self, found: griffe.Function) -> tuple[str, ...]:
        return self.sources.classes_of(found.returns)

    def _docstring(self, found: griffe.Object) -> Docstring:
        sections = Docstring()
        if found.docstring is None:
            return sections
        texts = []
        for section in found.docstring.parsed:
            kind, value = section.kind, section.value
            if kind is griffe.DocstringSectionKind.text:
                texts.append(value)
            elif kind is griffe.DocstringSectionKind.parameters:
                sections.parameters = {item.name: item.description for item in value}
            elif kind in (
                griffe.DocstringSectionKind.returns,
                griffe.DocstringSectionKind.yields,
            ):
                sections.returns = " ".join(item.description for item in value)
            elif kind is griffe.DocstringSectionKind.raises:
                sections.errors = [
                    Described(str(item.annotation), "", item.description) for item in value
                ]
            else:
                raise SourceProblem(f"{found.path}: unexpected section {kind.value} in docstring")
        sections.text = "\n\n".join(texts)
        return sections


def _target(member: griffe.Object | griffe.Alias) -> griffe.Object:
    return member.final_target if isinstance(member, griffe.Alias) else member


def _merge(of_class: Docstring, of_constructor: Docstring) -> Docstring:
    """Return the docstring of a class with the sections of its constructor's docstring."""
    return Docstring(
        "\n\n".join(filter(None, (of_class.text, of_constructor.text))),
        of_class.parameters | of_constructor.parameters,
        errors=of_class.errors + of_constructor.errors,
    )


def _base_paths(found: griffe.Class) -> list[str]:
    return [_target(base).canonical_path for base in found.resolved_bases]


def _is_a(found: griffe.Class, *names: str) -> bool:
    """Return whether a direct base has one of the names."""
    return any(str(base).rpartition(".")[2] in names for base in found.bases)
