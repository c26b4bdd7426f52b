"""Recognition of files that configure something else, like a cluster, an agent or a notebook.

The refusal of such a file is a single line with the kind of the file, instead of a line for every
unknown field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final

from control_plane.config.eras import Tree
from control_plane.config.experiment import ExperimentConfig
from control_plane.findings import Finding

_RUN: Final = (
    "`detcloud command run --config-file FILE` and `detcloud notebook start --config-file FILE` "
    "take one; add entrypoint and searcher to train with it"
)


@dataclass(frozen=True, slots=True)
class OtherFile:
    """A kind of file that does not configure an experiment."""

    name: str
    """The description in messages, with an article."""
    fields: Set[str]
    """The fields at the top of a file. Any of the fields identifies the kind."""
    hint: str
    """The advice to the user."""


OTHER_FILES: Final = (
    OtherFile(
        "an agent, as Determined's agent.yaml",
        frozenset(
            {
                "master_host",
                "master_port",
                "agent_id",
                "visible_gpus",
                "container_master_host",
                "container_auto_remove_disabled",
                "agent_reconnect_attempts",
            }
        ),
        "agents have options instead: python -m detcloud.agent --help",
    ),
    OtherFile(
        "a cluster on Kubernetes, by Determined's Helm chart",
        frozenset({"imageRegistry", "masterPort", "maxSlotsPerPod", "checkpointStorage"}),
        "a cluster here needs no Kubernetes: `detcloud deploy` puts one into a cloud",
    ),
    OtherFile(
        "a cluster, as Determined's master.yaml",
        frozenset(
            {
                "db",
                "resource_manager",
                "resource_pools",
                "additional_resource_managers",
                "task_container_defaults",
                "provisioner",
                "scim",
                "telemetry",
                "enable_cors",
                "launch_error",
            }
        ),
        "check it with `detcloud config check --cluster FILE`",
    ),
    OtherFile(
        "rules for configurations, as Determined's config policies",
        frozenset({"constraints", "invariant_config"}),
        "templates hold what configurations share: `detcloud template set NAME FILE`",
    ),
    OtherFile(
        "a command, a notebook, a shell or a TensorBoard",
        frozenset({"notebook_idle_type", "tensorboard_args", "work_dir"}),
        _RUN,
    ),
)
"""The kinds of files. If a file has fields of several kinds, the first kind applies."""

_TRAINING: Final = frozenset({"searcher", "hyperparameters", "entrypoint"})


def find_other_file(layers: Sequence[Tree]) -> Finding | None:
    """Return a finding if the user's file does not configure an experiment, else None.

    A file is refused if it has a field of OTHER_FILES or sets `resources.slots`. It is also refused
    if it looks like a template: it has only fields that both eras have, and no layer has a
    searcher, hyperparameters or an entrypoint. Return None for an empty file, and if any layer sets
    a searcher.

    Args:
        layers: the layers of the configuration, the user's layer first.
    """
    if any(layer.get("searcher") is not None for layer in layers):
        return None
    own = layers[0]
    kind = next((other_file for other_file in OTHER_FILES if other_file.fields & own.keys()), None)
    if kind is not None:
        return Finding((), f"configures {kind.name}, no experiment", kind.hint)
    if _has_slots(own):
        name = "a command, a notebook or a shell"
        return Finding((), f"configures {name}, no experiment", _RUN)
    is_partial = own.keys() <= ExperimentConfig.model_fields.keys()
    if own and is_partial and not any(layer.keys() & _TRAINING for layer in layers):
        return Finding(
            (),
            "has no entrypoint and no searcher, as a template",
            "`detcloud template set NAME FILE` stores one, --template NAME completes a "
            "configuration with it",
        )
    return None


def _has_slots(tree: Tree) -> bool:
    """Return whether the field `resources.slots` is set, as in Determined's files for commands."""
    resources: Any = tree.get("resources")
    return isinstance(resources, Mapping) and resources.get("slots") is not None
