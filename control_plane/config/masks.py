"""The refusal of configurations that contain masks in place of secrets."""

from __future__ import annotations

from collections.abc import Iterator

from control_plane.findings import Finding
from detcloud.shared.masking import find_masks


def mask_findings(tree: object) -> Iterator[Finding]:
    """Yield a finding for each mask that stands for a secret in submitted fields.

    Users may copy a configuration that was shown with masks. Its submission would store the mask in
    place of the secret. A mask in a place that is never masked is not a finding.
    """
    for loc in find_masks(tree):
        hint = "write the value itself, or remove it; nobody can read it back"
        yield Finding(loc, "is the mask of a hidden value, not a value", hint)
