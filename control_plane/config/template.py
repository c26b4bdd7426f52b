"""Configuration templates: layers below the configurations of users, who write them as well."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import yaml

from control_plane.config.eras import Tree
from control_plane.config.problems import ConfigInvalid, Problem
from control_plane.config.section import mask_secrets
from control_plane.config.yaml_document import SourcePlace, line_of, parse_document
from control_plane.findings import Loc, path_text

WRITTEN_BYTES_MAX: Final = 128 * 1024

_DUMPER: Final = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


@dataclass(frozen=True, slots=True)
class Template:
    """A template's fields, where they stand in it, and the values of it that cannot be read; the
    lines of `problems` are the template's.
    """

    tree: Tree
    place: SourcePlace
    problems: tuple[Problem, ...] = ()
    unread: frozenset[Loc] = frozenset()

    def line_of(self, loc: Loc) -> int | None:
        """Return the line of the deepest part of `loc` that the template has, None for none."""
        return line_of(self.place, loc)[0]


def read_template(text: str) -> Template:
    """Read a template, in which fields may be missing.

    Raises:
        ConfigInvalid: the text is no YAML map at all.
    """
    document = parse_document(text)
    tree = {} if document.tree is None else document.tree
    if not isinstance(tree, Mapping):
        hint = "like 'max_restarts: 1'"
        raise ConfigInvalid([Problem("", 1, None, "must be a map of fields", hint)])
    problems = tuple(
        Problem(
            path_text(finding.loc),
            line_of(document.place, finding.loc)[0],
            finding.shown_value,
            finding.message,
            finding.hint,
        )
        for finding in document.findings
    )
    unread = frozenset(finding.loc for finding in document.findings)
    return Template(tree, document.place, problems, unread)


def masked_template(text: str) -> str:
    """Return a template as it is shown to users who may not change it: rewritten with its secrets
    masked, or unchanged where it has none. ConfigInvalid: as `read_template`, or a value of it
    cannot be read.
    """
    template = read_template(text)
    if template.problems:
        raise ConfigInvalid(template.problems)
    masked = mask_secrets(template.tree)
    if masked == template.tree:
        return text
    # An alias is a byte or two that may stand for all of the text: look before writing it out.
    written = ""
    if _text_size(masked) <= WRITTEN_BYTES_MAX:
        written = yaml.dump(masked, Dumper=_DUMPER, sort_keys=False, allow_unicode=True)
    if not written or len(written.encode()) > WRITTEN_BYTES_MAX:
        message = f"has more than {WRITTEN_BYTES_MAX} bytes when its aliases are written out"
        raise ConfigInvalid([Problem("", None, None, message)])
    return written


def _text_size(value: object) -> int:
    """Estimate how many characters a value has when its aliases are written out."""
    if isinstance(value, Mapping):
        return sum(len(key) + _text_size(child) for key, child in value.items()) + 2
    if isinstance(value, list):
        return sum(map(_text_size, value)) + 2
    return len(str(value)) + 2
