"""Loading trials from a checkpoint's files, in any process."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import torch

from detcloud.compatibility.functions import import_from_path
from detcloud.core.context_builder import context_without_cluster
from detcloud.pytorch.context import PyTorchTrialContext
from detcloud.pytorch.former_trial import to_current_form
from detcloud.pytorch.optimization import MODELS, rename_former_parts
from detcloud.pytorch.original_checkpoint import (
    check_readable,
    read_load_data,
    read_state,
    state_path,
)
from detcloud.pytorch.trial import PyTorchTrial
from detcloud.shared.articles import with_article
from detcloud.shared.errors import DetcloudError
from detcloud.shared.trial_checkpoint import CODE_FOLDER, LOAD_FILE, METADATA_FILE
from detcloud.shared.trial_directory import TrialSpec

Model = TypeVar("Model", bound=torch.nn.Module)


class CheckpointLoadContext(PyTorchTrialContext):
    """A context without training: nothing is reported, and other processes are not contacted."""

    def __init__(
        self, hparams: dict[str, Any] | None = None, exp_conf: dict[str, Any] | None = None
    ) -> None:
        """Create the context of a trial.

        Args:
            hparams: the hyperparameters.
            exp_conf: the experiment's configuration.
        """
        spec = TrialSpec(hparams=hparams or {}, config=exp_conf or {})
        super().__init__(context_without_cluster(spec))

    def wrap_model(self, model: Model) -> Model:
        """Move the model to the device, keep the model for loading, and return the model."""
        moved = model.to(self.device)
        self.optimization.models.append(moved)
        self.optimization.wrapped_models.append(moved)
        return moved


def load_trial_from_checkpoint_path(
    path: str | Path,
    trial_class: type[PyTorchTrial] | None = None,
    trial_kwargs: dict[str, Any] | None = None,
    torch_load_kwargs: dict[str, Any] | None = None,
    **kwargs: Any,
) -> PyTorchTrial:
    """Create a trial with the weights of a checkpoint, from a folder with the checkpoint's files.

    Checkpoints of Determined are read, too. Reading the state runs no code unless
    `weights_only=False` is passed or TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD is set. Exceptions of the
    trial's code are raised unchanged.

    Args:
        path: the folder, for example of `Checkpoint.download`.
        trial_class: the class of the trial. With None, the class is imported from the code in the
            checkpoint. That runs this code, so trust the checkpoint.
        trial_kwargs: arguments of the class after the context.
        torch_load_kwargs: arguments of torch.load.
        kwargs: arguments of torch.load, too, which replace equal names in `torch_load_kwargs`.

    Raises:
        DetcloudError: the files are no checkpoint of a PyTorchTrial, the class cannot be imported,
            the state cannot be read, or the weights do not fit the models.
    """
    folder = Path(path)
    load_data = read_load_data(folder)
    _check_kind(folder, load_data)
    context = CheckpointLoadContext(load_data.get("hparams"), load_data.get("experiment_config"))
    code = folder / CODE_FOLDER
    script_folder = str(load_data.get("script_folder") or "")
    with import_from_path(code), import_from_path(code / script_folder):
        kind: Any = trial_class or _stored_class(folder, load_data)
        trial: PyTorchTrial = kind(context, **(trial_kwargs or {}))
        to_current_form(trial, context)
    path = state_path(folder)
    try:
        state = read_state(path, **{**(torch_load_kwargs or {}), **kwargs})
    except DetcloudError as error:
        raise DetcloudError(f"{path}: {error}") from error
    state = rename_former_parts(state)
    check_readable(state, MODELS)
    context.optimization.load_models(state)
    return trial


def _check_kind(folder: Path, load_data: dict[str, Any]) -> None:
    """Raise DetcloudError if the checkpoint names a kind of trial that is not PyTorchTrial.

    `load_data` is the content of the checkpoint's load_data.json. A checkpoint that names no kind
    counts as one of a PyTorchTrial. `folder` is only named in the message.
    """
    kind = load_data.get("trial_type") or "PyTorchTrial"
    if kind != "PyTorchTrial":
        raise DetcloudError(
            f"{folder} is a checkpoint of {with_article(kind)} ({LOAD_FILE}): "
            "load_trial_from_checkpoint_path reads those of a PyTorchTrial"
        )


def _stored_class(folder: Path, load_data: dict[str, Any]) -> Any:
    """Import and return the trial class that the checkpoint's facts name.

    Raises DetcloudError if no class is named or the class cannot be imported. Exceptions that the
    imported code raises by itself are raised unchanged.
    """
    place = str(load_data.get("trial_cls_spec") or "")
    module, _, path = place.partition(":")
    if not path:
        raise DetcloudError(
            f"{folder} does not say which class it is of ({LOAD_FILE}, trial_cls_spec; or"
            f" {METADATA_FILE}, experiment_config.entrypoint): give"
            " load_trial_from_checkpoint_path a trial_class"
        )
    try:
        named: Any = import_module(module)
        for part in path.split("."):
            named = getattr(named, part)
    except (ImportError, AttributeError) as error:
        raise DetcloudError(
            f"the class {place} of {folder} cannot be imported: {error}; give "
            "load_trial_from_checkpoint_path a trial_class"
        ) from error
    return named
