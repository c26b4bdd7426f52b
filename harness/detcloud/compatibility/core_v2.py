"""Determined's `experimental.core_v2`: the Core API of this trial as module-level objects."""

from __future__ import annotations

import atexit
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from detcloud import core
from detcloud.compatibility.cluster_info import get_cluster_info
from detcloud.compatibility.core import init as open_core
from detcloud.shared.errors import DetcloudError

train: core.TrainContext | None = None
checkpoint: core.CheckpointContext | None = None
distributed: core.DistributedContext | None = None
preempt: core.PreemptContext | None = None
searcher: Any = None
info: Any = None

_NAMES = ("train", "checkpoint", "distributed", "preempt", "searcher", "info")


@dataclass
class Config:
    """The configuration of an experiment outside of a cluster. In a trial it is ignored."""

    name: str | None = None
    hparams: dict[str, Any] | None = None
    data: dict[str, Any] | None = None
    description: str | None = None
    labels: list[str] | None = None
    workspace: str | None = None
    project: str | None = None
    checkpoint_storage: str | dict[str, Any] | None = None
    searcher: dict[str, Any] | None = None
    external_experiment_id: str | None = None
    external_trial_id: str | None = None


class DefaultConfig(Config):
    """Config by a former name."""


class UnmanagedConfig(Config):
    """Config by a former name."""


class _Session:
    """The open context between `init` and `close`."""

    def __init__(self, block: AbstractContextManager[core.Context]) -> None:
        self.block = block
        self.context = block.__enter__()


_session: _Session | None = None


def init(**options: Any) -> None:
    """Set this module's `train`, `checkpoint`, `distributed` and so on, until `close`.

    An earlier context is closed first.

    Args:
        options: the arguments of `init_context`.

    Raises:
        DetcloudError: the code runs outside of a cluster.
    """
    global _session
    close()
    if _session is None:
        atexit.register(_abandon)
    _session = _Session(init_context(**options))
    for name in _NAMES:
        globals()[name] = getattr(_session.context, name)


def init_context(
    *,
    config: Config | None = None,
    defaults: Config | None = None,
    unmanaged: Config | None = None,
    client: object = None,
    distributed: core.DistributedContext | None = None,
    checkpoint_storage: str | dict[str, Any] | None = None,
    preempt_mode: core.PreemptMode = core.PreemptMode.WorkersAskChief,
    tensorboard_mode: core.TensorboardMode = core.TensorboardMode.AUTO,
) -> AbstractContextManager[core.Context]:
    """Return the Core API of this trial, for a `with` block.

    Args:
        config: ignored with a printed notice, because the experiment has a configuration.
        defaults: ignored with a printed notice.
        unmanaged: ignored with a printed notice.
        client: ignored.
        distributed: as for `core.init`.
        checkpoint_storage: as for `core.init`.
        preempt_mode: as for `core.init`.
        tensorboard_mode: as for `core.init`.

    Raises:
        DetcloudError: the code runs outside of a cluster.
    """
    if get_cluster_info() is None:
        raise DetcloudError(
            "core_v2 outside of a cluster would make an experiment on Determined's master, and"
            " there is none: submit the code with `detcloud create`, or use core.init()"
        )
    if any(given is not None for given in (config, defaults, unmanaged)):
        print(
            "[detcloud] the configuration given to core_v2 is not used: the experiment has its own",
            flush=True,
        )
    return open_core(
        distributed=distributed,
        checkpoint_storage=checkpoint_storage,
        preempt_mode=preempt_mode,
        tensorboard_mode=tensorboard_mode,
    )


def alert(title: str = "", description: str = "", level: str = "info") -> None:
    """Write an alert to the trial's log.

    Args:
        title: the title.
        description: the text after the title.
        level: the severity, such as `warn`.

    Raises:
        DetcloudError: `init` was not called before.
    """
    if _session is None:
        raise DetcloudError("core_v2.alert was called before core_v2.init")
    _session.context.alert(title, description, level)


def url_reverse_webui_exp_view() -> str:
    """Return the command that shows the experiment. Raises DetcloudError before `init`."""
    if _session is None:
        raise DetcloudError("core_v2.url_reverse_webui_exp_view was called before core_v2.init")
    return f"detcloud describe {_session.context.info.experiment_id}"


def close() -> None:
    """Close the context of `init` as successful, and reset this module's objects to None.

    Do nothing without a context.
    """
    global _session
    if _session is not None:
        _session.block.__exit__(None, None, None)
    _session = None
    for name in _NAMES:
        globals()[name] = None


def _abandon() -> None:
    """Close the files in a process that ends without `close`. The exit code decides the outcome."""
    if _session is not None:
        core.Context.close(_session.context)
