"""The section `snapshots` of notebooks and shells: how the files of the folder are kept.

The section is at the top of a notebook's or shell's configuration. No part of an experiment's or
command's configuration has this name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pydantic import ValidationError, model_validator

from control_plane.actors.records import JobKind, SnapshotSettings
from control_plane.config.durations import PositiveDuration, duration_text
from control_plane.config.eras import Tree
from control_plane.config.section import Section, findings_of, refuse_at
from control_plane.config.sizes import SizeBytes
from control_plane.findings import Finding

SECTION: Final = "snapshots"
PERIOD_MS_MIN: Final = 10_000
BYTES_MAX_DEFAULT: Final = 1024**3
KEPT_KINDS: Final = (JobKind.NOTEBOOK, JobKind.SHELL)
"""The kinds of jobs whose folder is kept."""


class Snapshots(Section):
    """How the files of a notebook's or shell's folder are kept."""

    enabled: bool = True
    """Whether snapshots are saved. Without a snapshot, the files are lost with the run."""
    period: PositiveDuration = 300_000
    """The time between snapshots while files change, at least 10s. A lost machine loses at most the
    changes of this time.
    """
    max_size: SizeBytes = BYTES_MAX_DEFAULT
    """The largest size of all files: bytes, or a size like `1.5 gb`. Above, no snapshot is saved,
    and the log says so.
    """

    @model_validator(mode="after")
    def _check_period(self) -> Snapshots:
        if self.period < PERIOD_MS_MIN:
            text = f"must be at least {duration_text(PERIOD_MS_MIN)}"
            refuse_at(("period",), text, value=duration_text(self.period))
        return self


def take_snapshots(
    layers: Sequence[Tree], kind: JobKind
) -> tuple[list[Tree], SnapshotSettings | None, list[Finding]]:
    """Take the section `snapshots` out of the layers of a notebook's or shell's configuration.

    Return the layers without the section, the settings, and a finding for each invalid field. The
    settings are None if snapshots are disabled or a field is invalid. A command cannot have the
    section: each layer with the section is a finding.

    Args:
        layers: the layers, the user's layer first.
        kind: the kind of job: a command, notebook or shell.
    """
    sections = [layer[SECTION] for layer in layers if layer.get(SECTION) is not None]
    rest: list[Tree] = [
        {name: value for name, value in layer.items() if name != SECTION} for layer in layers
    ]
    if kind not in KEPT_KINDS:
        hint = f"remove it: the folder of a {kind} is not kept"
        findings = [Finding((SECTION,), "is for notebooks and shells", hint)] if sections else []
        return rest, None, findings
    merged: dict[str, Any] = {}
    for section in reversed(sections):
        if not isinstance(section, dict):
            hint = "such as {period: 5m, max_size: 1GB}"
            return rest, None, [Finding((SECTION,), "must be a map of fields", hint, section)]
        merged |= section
    try:
        fields = Snapshots.model_validate(merged)
    except ValidationError as error:
        findings = [
            Finding((SECTION, *found.loc), found.message, found.hint, found.value)
            for found in findings_of(error)
        ]
        return rest, None, findings
    if not fields.enabled:
        return rest, None, []
    bytes_max = BYTES_MAX_DEFAULT if fields.max_size is None else fields.max_size
    return rest, SnapshotSettings(kind, fields.period, bytes_max), []


def snapshot_values(kind: JobKind, settings: SnapshotSettings | None) -> dict[str, Any]:
    """Return the section `snapshots` in the form that users write. {} for other kinds of jobs."""
    if kind not in KEPT_KINDS:
        return {}
    if settings is None:
        return {SECTION: {"enabled": False}}
    period = duration_text(settings.period_ms)
    return {SECTION: {"enabled": True, "period": period, "max_size": settings.bytes_max}}
