"""Recognizes files that configure something else than an experiment: a cluster, an agent, a
notebook.

Their refusal says what they are in one line, instead of one line for every field.
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
    """A kind of file, the fields by which it is told, and what to do with it."""

    name: str
    fields: Set[str]
    hint: str


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
        frozenset({"idle_timeout", "notebook_idle_type", "tensorboard_args", "work_dir"}),
        _RUN,
    ),
)
"""In the order in which they are looked for."""

_TRAINING: Final = frozenset({"searcher", "hyperparameters", "entrypoint"})


def find_other_file(layers: Sequence[Tree]) -> Finding | None:
    """Return the finding that a configuration, whose layers are given with the user's own first, is
    no experiment's; None where it may be one: it has a searcher, or nothing of the other kinds.
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
    """Whether a file asks for the slots of a task, which Determined wrote without `_per_trial`."""
    resources: Any = tree.get("resources")
    return isinstance(resources, Mapping) and resources.get("slots") is not None
