"""Hints for fields in the wrong section of a configuration."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Final

from control_plane.config.environment import Environment
from control_plane.config.experiment import LengthConfig
from control_plane.config.resources import Resources
from control_plane.config.searcher import SearcherSection
from control_plane.config.section import UNKNOWN_FIELD, Section
from control_plane.config.storage import CheckpointStorage
from control_plane.config.training import Debugger, Optimizations, Profiling, Reproducibility
from control_plane.findings import Finding, path_text

# If several sections have a field of a name, the hint names the first section.
_SECTIONS: Final[dict[str, type[Section]]] = {
    "resources": Resources,
    "environment": Environment,
    "reproducibility": Reproducibility,
    "searcher": SearcherSection,
    "optimizations": Optimizations,
    "profiling": Profiling,
    "debugger": Debugger,
    "checkpoint_storage": CheckpointStorage,
}
# Only some searchers have these fields, so SearcherSection lacks the fields.
_SEARCHER_FIELDS: Final = ("max_length", "max_trials", "max_concurrent_trials", "max_steps", "mode")


def with_section_hint(finding: Finding) -> Finding:
    """Return the finding of an unknown field with a hint at the section that has the field.

    Return other findings, and findings of fields that no section has, unchanged.
    """
    if finding.message != UNKNOWN_FIELD or not finding.loc:
        return finding
    path = _field_paths().get(str(finding.loc[-1]))
    is_elsewhere = path is not None and path != path_text(finding.loc)
    return replace(finding, hint=f"write it as {path}") if is_elsewhere else finding


@cache
def _field_paths() -> dict[str, str]:
    paths = {name: f"searcher.{name}" for name in _SEARCHER_FIELDS}
    for section, model in reversed(_SECTIONS.items()):
        paths |= {name: f"{section}.{name}" for name in model.model_fields}
    return paths | {name: name for name in LengthConfig.model_fields}
