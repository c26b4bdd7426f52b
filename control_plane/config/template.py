"""Configuration templates, which users write as layers below configurations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import yaml

from control_plane.config.eras import Tree
from control_plane.config.masks import mask_findings
from control_plane.config.problems import ConfigInvalid, Problem
from control_plane.config.yaml_document import SourcePlace, line_of, parse_document
from control_plane.findings import Loc, path_text
from detcloud.shared.masking import drop_secrets, mask_secrets

WRITTEN_BYTES_MAX: Final = 128 * 1024

_DUMPER: Final = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


@dataclass(frozen=True, slots=True)
class Template:
    """A template in parsed form."""

    tree: Tree
    """The fields of the template."""
    place: SourcePlace
    """The lines of the fields."""
    problems: tuple[Problem, ...] = ()
    """The problems of unreadable values, with lines of the template."""
    unread: frozenset[Loc] = frozenset()
    """The paths of the unreadable values."""

    def line_of(self, loc: Loc) -> int | None:
        """Return the line of the value at `loc`, or of the deepest existing part of the path.

        Return None if the template lacks the first key of the path.
        """
        return line_of(self.place, loc)[0]


def read_template(text: str) -> Template:
    """Return the template in a YAML text. An empty text is a template without fields.

    Fields are not validated. Single unreadable values become problems of the template.

    Raises:
        ConfigInvalid: the text is not readable YAML, or not a map.
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


def drop_template_secrets(text: str) -> tuple[Template, tuple[str, ...]]:
    """Read a template and drop the secrets.

    Return the template, and the paths of the dropped secrets as texts. A registry login with a
    secret is dropped as a whole.

    Raises:
        ConfigInvalid: as in `read_template`.
    """
    template = read_template(text)
    tree, dropped = drop_secrets(template.tree)
    return replace(template, tree=tree), tuple(path_text(loc) for loc in dropped)


def check_masks(text: str) -> None:
    """Check that a template contains no masks in place of secrets.

    Raises:
        ConfigInvalid: the template contains masks; the error has a problem for each mask. Also
            raised as in `read_template`.
    """
    if problems := mask_problems(read_template(text)):
        raise ConfigInvalid(problems)


def mask_problems(template: Template) -> list[Problem]:
    """Return a problem for each mask in place of a secret, with the line in the template."""
    return [
        Problem(
            path_text(finding.loc),
            template.line_of(finding.loc),
            None,
            finding.message,
            finding.hint,
        )
        for finding in mask_findings(template.tree)
    ]


def masked_template(text: str) -> str:
    """Return the text of a template with masked secrets, for users who may not change the template.

    If the text holds secrets, return the masked template as YAML without comments. Otherwise
    return `text` unchanged.

    Raises:
        ConfigInvalid: the template contains unreadable values, or the new text would have more than
            WRITTEN_BYTES_MAX bytes. Also raised as in `read_template`.
    """
    template = read_template(text)
    if template.problems:
        raise ConfigInvalid(template.problems)
    masked = mask_secrets(template.tree)
    if masked == template.tree:
        return text
    # Short aliases can repeat large values. Estimate the size first, because writing takes memory.
    written = ""
    if _text_size(masked) <= WRITTEN_BYTES_MAX:
        written = yaml.dump(masked, Dumper=_DUMPER, sort_keys=False, allow_unicode=True)
    if not written or len(written.encode()) > WRITTEN_BYTES_MAX:
        message = f"has more than {WRITTEN_BYTES_MAX} bytes when its aliases are written out"
        raise ConfigInvalid([Problem("", None, None, message)])
    return written


def _text_size(value: object) -> int:
    """Return the estimated number of characters of a value in YAML without aliases."""
    if isinstance(value, Mapping):
        return sum(len(key) + _text_size(child) for key, child in value.items()) + 2
    if isinstance(value, list):
        return sum(map(_text_size, value)) + 2
    return len(str(value)) + 2
