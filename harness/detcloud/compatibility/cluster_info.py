"""The facts about a trial and its cluster, under Determined's names."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from detcloud.shared.trial_directory import TrialDirectory, TrialSpec


@dataclass(frozen=True)
class TrialInfo:
    """The trial: its ids, seed, hyperparameters, configuration and progress in batches."""

    trial_id: int
    experiment_id: int
    trial_seed: int
    hparams: dict[str, Any]
    experiment_config: dict[str, Any]
    steps_completed: int

    @property
    def _config(self) -> dict[str, Any]:
        # Scripts written for Determined reach for it, though its name says that they should not.
        return self.experiment_config


@dataclass(frozen=True)
class ResourcesInfo:
    """The devices of this node."""

    gpu_uuids: list[str]


@dataclass(frozen=True)
class ClusterInfo:
    """The cluster as a trial sees it. `session_token` and `master_url` are empty: a trial holds no
    credential and calls nobody.
    """

    cluster_id: str
    agent_id: str
    slot_ids: list[int]
    task_id: str
    allocation_id: str
    container_addrs: list[str]
    container_slot_counts: list[int]
    container_rank: int
    trial: TrialInfo
    latest_checkpoint: str | None
    user_data: dict[str, Any]
    task_type: str = "TRIAL"
    master_url: str = ""
    session_token: str = ""

    @property
    def gpu_uuids(self) -> list[str]:
        """The devices of this node as CUDA was told to see them; none on a CPU."""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        return [device for device in visible.split(",") if device]


def get_cluster_info() -> ClusterInfo | None:
    """The facts about this trial and its cluster; None for code that runs by itself."""
    directory = TrialDirectory.from_environment()
    return None if directory is None else _read_cluster_info(directory.spec)


def _read_cluster_info(spec: TrialSpec) -> ClusterInfo:
    checkpoint = spec.latest_checkpoint
    trial = TrialInfo(
        trial_id=spec.trial_id,
        experiment_id=spec.experiment_id,
        trial_seed=spec.trial_seed,
        hparams=spec.hparams,
        experiment_config=spec.config,
        steps_completed=spec.steps_completed,
    )
    return ClusterInfo(
        cluster_id=spec.cluster_id,
        agent_id=os.environ.get("DETCLOUD_AGENT_ID", ""),
        slot_ids=list(spec.slots),
        task_id=f"{spec.experiment_id}.{spec.trial_id}",
        allocation_id=spec.allocation_id,
        container_addrs=list(spec.hosts) or ["127.0.0.1"],
        container_slot_counts=[len(spec.slots)] * max(1, spec.nodes),
        container_rank=spec.node_rank,
        trial=trial,
        latest_checkpoint=None if checkpoint is None else checkpoint.uuid,
        user_data=dict(spec.config.get("data") or {}),
    )
