"""Hints at the place of fields that were written into another section than theirs."""

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
from control_plane.config.training import Optimizations, Profiling, Reproducibility
from control_plane.findings import Finding

# Of two sections with a field of one name the first is meant more often.
_SECTIONS: Final[dict[str, type[Section]]] = {
    "resources": Resources,
    "environment": Environment,
    "reproducibility": Reproducibility,
    "searcher": SearcherSection,
    "optimizations": Optimizations,
    "profiling": Profiling,
    "checkpoint_storage": CheckpointStorage,
}
# These are fields of particular searches.
_OF_SEARCHES: Final = ("max_length", "max_trials", "max_concurrent_trials", "max_steps", "mode")


def with_place(finding: Finding) -> Finding:
    """Return a finding of an unknown field with a hint at the section that has such a field."""
    if finding.message != UNKNOWN_FIELD or not finding.loc:
        return finding
    place = _places().get(str(finding.loc[-1]))
    is_elsewhere = place is not None and place != ".".join(map(str, finding.loc))
    return replace(finding, hint=f"write it as {place}") if is_elsewhere else finding


@cache
def _places() -> dict[str, str]:
    places = {name: f"searcher.{name}" for name in _OF_SEARCHES}
    for section, model in reversed(_SECTIONS.items()):
        places |= {name: f"{section}.{name}" for name in model.model_fields}
    return places | {name: name for name in LengthConfig.model_fields}
