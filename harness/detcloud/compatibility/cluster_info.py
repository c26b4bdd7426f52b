"""Facts about a trial and its cluster, under Determined's names."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from detcloud.shared.trial_directory import TrialDirectory, TrialSpec


@dataclass(frozen=True)
class TrialInfo:
    """Facts about a trial: ids, seed, hyperparameters, configuration and progress.

    Scripts written for Determined also read the fields with an underscore.
    """

    trial_id: int
    experiment_id: int
    trial_seed: int
    hparams: dict[str, Any]
    _config: dict[str, Any]
    _steps_completed: int = 0
    _trial_run_id: int = 1
    _debug: bool = False
    _inter_node_network_interface: str | None = None

    @property
    def experiment_config(self) -> dict[str, Any]:
        """The experiment's configuration with all defaults."""
        return self._config

    @property
    def steps_completed(self) -> int:
        """The batches completed at the checkpoint from which the trial resumes."""
        return self._steps_completed


@dataclass(frozen=True)
class RendezvousInfo:
    """The nodes of a trial."""

    container_addrs: list[str]
    """The addresses of the nodes, by rank of the node."""
    container_rank: int
    """The rank of this node."""
    container_slot_counts: list[int]
    """The number of slots of each node."""


@dataclass(frozen=True)
class ResourcesInfo:
    """The devices of this node."""

    gpu_uuids: list[str]


@dataclass(frozen=True)
class ClusterInfo:
    """Facts about the cluster, for a trial.

    `session_token` and `master_url` are empty, because a trial has no credentials and makes no
    requests.
    """

    cluster_id: str
    agent_id: str
    slot_ids: list[int]
    task_id: str
    allocation_id: str
    _trial_info: TrialInfo
    _rendezvous_info: RendezvousInfo
    _resources_info: ResourcesInfo
    _latest_checkpoint: str | None = None
    task_type: str = "TRIAL"
    master_url: str = ""
    session_token: str = ""
    master_cert_name: str | None = None
    master_cert_file: str | None = None

    @property
    def trial(self) -> TrialInfo:
        return self._trial_info

    @property
    def latest_checkpoint(self) -> str | None:
        """The UUID of the checkpoint to resume or start from, or None."""
        return self._latest_checkpoint

    @property
    def user_data(self) -> dict[str, Any]:
        """A copy of the configuration's section `data`, or an empty dict."""
        return dict(self._trial_info.experiment_config.get("data") or {})

    @property
    def container_addrs(self) -> list[str]:
        return self._rendezvous_info.container_addrs

    @property
    def container_rank(self) -> int:
        return self._rendezvous_info.container_rank

    @property
    def container_slot_counts(self) -> list[int]:
        return self._rendezvous_info.container_slot_counts

    @property
    def gpu_uuids(self) -> list[str]:
        """The devices in CUDA_VISIBLE_DEVICES, or an empty list."""
        return self._resources_info.gpu_uuids


def get_cluster_info() -> ClusterInfo | None:
    """Return facts about this trial and the cluster. Return None outside of a trial."""
    directory = TrialDirectory.from_environment()
    return None if directory is None else _read_cluster_info(directory.spec)


def _read_cluster_info(spec: TrialSpec) -> ClusterInfo:
    checkpoint = spec.latest_checkpoint
    trial = TrialInfo(
        trial_id=spec.trial_id,
        experiment_id=spec.experiment_id,
        trial_seed=spec.trial_seed,
        hparams=spec.hparams,
        _config=spec.config,
        _steps_completed=spec.steps_completed,
        _trial_run_id=spec.epoch,
        _debug=bool(spec.config.get("debug")),
    )
    nodes = RendezvousInfo(
        container_addrs=list(spec.hosts) or ["127.0.0.1"],
        container_rank=spec.node_rank,
        container_slot_counts=[len(spec.slots)] * max(1, spec.nodes),
    )
    devices = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return ClusterInfo(
        cluster_id=spec.cluster_id,
        agent_id=spec.agent_id,
        slot_ids=list(spec.slots),
        task_id=f"{spec.experiment_id}.{spec.trial_id}",
        allocation_id=spec.allocation_id,
        _trial_info=trial,
        _rendezvous_info=nodes,
        _resources_info=ResourcesInfo([device for device in devices if device]),
        _latest_checkpoint=None if checkpoint is None else checkpoint.uuid,
    )
