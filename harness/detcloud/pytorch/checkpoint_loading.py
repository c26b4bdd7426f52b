"""Trials made again from a checkpoint's files, in any process."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import torch

from detcloud.compatibility.functions import import_from_path
from detcloud.core.context import context_without_cluster
from detcloud.pytorch.context import PyTorchTrialContext
from detcloud.pytorch.former_trial import to_current_form
from detcloud.pytorch.optimization import rename_former_parts
from detcloud.pytorch.trial import PyTorchTrial
from detcloud.shared.errors import DetcloudError
from detcloud.shared.trial_checkpoint import CODE_FOLDER, LOAD_FILE, STATE_FILE
from detcloud.shared.trial_directory import TrialSpec

Model = TypeVar("Model", bound=torch.nn.Module)


class CheckpointLoadContext(PyTorchTrialContext):
    """A context for a trial that is not trained: it reports nothing and knows no other process."""

    def __init__(
        self, hparams: dict[str, Any] | None = None, exp_conf: dict[str, Any] | None = None
    ) -> None:
        spec = TrialSpec(hparams=hparams or {}, config=exp_conf or {})
        super().__init__(context_without_cluster(spec))

    def wrap_model(self, model: Model) -> Model:
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
    """A trial with the weights of a checkpoint, whose files lie at `path`.

    Without `trial_class` the class is imported from the checkpoint's own code: that runs it, so
    trust the checkpoint. `trial_kwargs` go to the class behind the context; the others to
    torch.load, which takes tensors and plain data only unless they have `weights_only=False`.
    """
    folder = Path(path)
    load_data = _read_load_data(folder)
    context = CheckpointLoadContext(load_data.get("hparams"), load_data.get("experiment_config"))
    code = folder / CODE_FOLDER
    script_folder = str(load_data.get("script_folder") or "")
    with import_from_path(code), import_from_path(code / script_folder):
        kind: Any = trial_class or _stored_class(folder, load_data)
        trial: PyTorchTrial = kind(context, **(trial_kwargs or {}))
        to_current_form(trial, context)
    options = {"map_location": "cpu", "weights_only": True, **(torch_load_kwargs or {}), **kwargs}
    try:
        state = torch.load(folder / STATE_FILE, **options)
    except Exception as error:
        raise DetcloudError(f"{folder / STATE_FILE} cannot be read: {error}") from error
    context.optimization.load_models(rename_former_parts(state))
    return trial


def _read_load_data(folder: Path) -> dict[str, Any]:
    place = folder / LOAD_FILE
    if not place.exists():
        return {}
    try:
        load_data = json.loads(place.read_bytes())
    except ValueError as error:
        raise DetcloudError(f"{place} is not JSON: {error}") from None
    return load_data if isinstance(load_data, dict) else {}


def _stored_class(folder: Path, load_data: dict[str, Any]) -> Any:
    place = str(load_data.get("trial_cls_spec") or "")
    module, _, path = place.partition(":")
    if not path:
        raise DetcloudError(
            f"{folder} does not say which class it is of ({LOAD_FILE}, trial_cls_spec): give "
            "load_trial_from_checkpoint_path a trial_class"
        )
    try:
        found: Any = import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise DetcloudError(
            f"the class {place} of {folder} cannot be imported: {error}; give "
            "load_trial_from_checkpoint_path a trial_class"
        ) from error
    return found
