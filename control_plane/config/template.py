"""Templates: parts of configurations that others are laid over. Their text is as hostile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import yaml

from control_plane.config.eras import Tree
from control_plane.config.problems import ConfigInvalid, Loc, Problem, path_text
from control_plane.config.section import without_secrets
from control_plane.config.yaml_document import Place, line_of, parse

WRITTEN_BYTES_MAX: Final = 128 * 1024

_DUMPER: Final = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


@dataclass(frozen=True, slots=True)
class Template:
    """A template's fields, where they stand in it, and the values of it that cannot be read; the
    lines of `problems` are the template's.
    """

    tree: Tree
    place: Place
    problems: tuple[Problem, ...] = ()
    unread: frozenset[Loc] = frozenset()

    def line_of(self, loc: Loc) -> int | None:
        """The line of the deepest part of `loc` that the template has, None for none."""
        return line_of(self.place, loc)[0]


def read_template(text: str) -> Template:
    """Reads a template, in which fields may be missing.

    Raises:
        ConfigInvalid: the text is no YAML map at all.
    """
    document = parse(text)
    tree = {} if document.tree is None else document.tree
    if not isinstance(tree, Mapping):
        hint = "like 'max_restarts: 1'"
        raise ConfigInvalid([Problem("", 1, None, "must be a map of fields", hint)])
    problems = tuple(
        Problem(
            path_text(finding.loc),
            line_of(document.place, finding.loc)[0],
            finding.value,
            finding.message,
            finding.hint,
        )
        for finding in document.findings
    )
    unread = frozenset(finding.loc for finding in document.findings)
    return Template(tree, document.place, problems, unread)


def masked_template(text: str) -> str:
    """A template as those see it who may use it but not change it: rewritten with its secrets
    masked, or as it is where it has none. ConfigInvalid: as `read_template`, or a value of it
    cannot be read.
    """
    template = read_template(text)
    if template.problems:
        raise ConfigInvalid(template.problems)
    masked = without_secrets(template.tree)
    if masked == template.tree:
        return text
    # An alias is a byte or two that may stand for all of the text: look before writing it out.
    written = ""
    if _size(masked) <= WRITTEN_BYTES_MAX:
        written = yaml.dump(masked, Dumper=_DUMPER, sort_keys=False, allow_unicode=True)
    if not written or len(written.encode()) > WRITTEN_BYTES_MAX:
        message = f"has more than {WRITTEN_BYTES_MAX} bytes when its aliases are written out"
        raise ConfigInvalid([Problem("", None, None, message)])
    return written


def _size(value: object) -> int:
    """About how many characters a value has when nothing of it is an alias."""
    if isinstance(value, Mapping):
        return sum(len(key) + _size(child) for key, child in value.items()) + 2
    if isinstance(value, list):
        return sum(map(_size, value)) + 2
    return len(str(value)) + 2
