"""The functions of `determined.util` and `determined.common.util` that training code uses."""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
import numbers
import os
import random
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import IO, Any, TypeVar

from detcloud.shared.errors import DetcloudError
from detcloud.shared.parameter_names import accept_names

TRAINING_GROUP = "training"
VALIDATION_GROUP = "validation"
INFERENCE_GROUP = "inference"
Returned = TypeVar("Returned")
Item = TypeVar("Item")

_FLOAT_TAG = "tag:yaml.org,2002:float"
_EXPONENT = re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+\Z")
_FALSE_WORDS = frozenset({"", "n", "no", "f", "false", "off", "0"})


def has_param(fn: Callable[..., Any], name: str, pos: int | None = None) -> bool:
    """Whether a function has a parameter of that name, or one at position `pos`."""
    names = inspect.getfullargspec(fn).args
    return name in names or (pos is not None and pos < len(names))


def is_overridden(full_method: Any, parent_class: type) -> bool:
    """Whether a method is defined by another class than `parent_class`."""
    place = getattr(full_method, "__qualname__", None)
    return place is not None and place.partition(".")[0] != parent_class.__name__


def get_member_func(obj: Any, func_name: str) -> Any:
    """The method of that name, or None."""
    member = getattr(obj, func_name, None)
    return member if callable(member) else None


def merge_dicts(base_dict: Mapping[Any, Any], source_dict: Mapping[Any, Any]) -> dict[Any, Any]:
    """The first mapping with the second laid over it, inside maps too; both stay as they are."""
    merged = copy.deepcopy(dict(base_dict))
    for key, value in source_dict.items():
        inner = base_dict.get(key)
        is_map = isinstance(value, Mapping) and isinstance(inner, Mapping)
        merged[key] = merge_dicts(inner, value) if is_map else value  # type: ignore[arg-type]
    return merged


def is_numerical_scalar(n: Any) -> bool:
    """Whether a value is one number, or an array of one."""
    if isinstance(n, numbers.Number):
        return True
    return hasattr(n, "item") and getattr(n, "size", 0) == 1


def filter_duplicates(
    in_list: Collection[Any], sorter: Callable[[Collection[Any]], Collection[Any]] = sorted
) -> set[Any]:
    """The items that are more than once in a list."""
    items = list(sorter(in_list))
    return {after for before, after in itertools.pairwise(items) if before == after}


def rmtree_nfs_safe(
    path: str | os.PathLike[str],
    ignore_errors: bool = False,
    onerror: Callable[..., Any] | None = None,
) -> None:
    """Remove a folder; one that network storage still shows as filled is tried again.

    `onerror(function, path, error)` is called for what cannot be removed.
    """
    handler: dict[str, Any] = {} if onerror is None else {"onerror": onerror}
    for attempt in range(4):
        try:
            shutil.rmtree(path, ignore_errors=ignore_errors, **handler)
        except OSError:
            if attempt == 3:
                raise
            time.sleep(0.05 * 2**attempt)
        else:
            return


def force_create_symlink(src: str, dst: str) -> None:
    """Make `dst` a link to `src`, in the place of what was there."""
    target = Path(dst)
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)
    target.symlink_to(src)


def preserve_random_state(fn: Callable[..., Returned]) -> Callable[..., Returned]:
    """The function, which leaves Python's generator of random numbers as it was."""

    @functools.wraps(fn)
    def call(*arguments: Any, **options: Any) -> Returned:
        state = random.getstate()
        try:
            return fn(*arguments, **options)
        finally:
            random.setstate(state)

    return call


@preserve_random_state
def download_gcs_blob_with_backoff(blob: Any, n_retries: int = 32, max_backoff: int = 32) -> Any:
    """The bytes of an object in a bucket of Google's, after as many tries as it takes."""
    for attempt in range(n_retries):
        try:
            return blob.download_as_string()
        except Exception as error:
            failure = error
            time.sleep(min(2**attempt + random.random(), max_backoff))
    raise DetcloudError(f"{blob!r} cannot be downloaded: {failure}")


def make_metrics(
    num_inputs: int | None, batch_metrics: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The metrics of batches and the mean of each, None where it has none."""
    # Imported here: it needs torch.
    from detcloud.pytorch.metrics import MetricAverage

    average = MetricAverage()
    for metrics in batch_metrics:
        average.add(dict(metrics))
    names = dict.fromkeys(name for metrics in batch_metrics for name in metrics)
    counts = {} if num_inputs is None else {"num_inputs": num_inputs}
    averages = {**names, **average.average()}
    return {"batch_metrics": batch_metrics, "avg_metrics": averages, **counts}


def wrap_metrics(metrics: Any, stop_requested: bool, **_others: bool) -> dict[str, Any]:
    """The answer to a workload: its metrics, and whether the code asks for the trial's end."""
    return {"metrics": metrics, "stop_requested": stop_requested}


def calculate_batch_sizes(
    hparams: Mapping[str, Any], slots_per_trial: int, trialname: str
) -> tuple[int, int]:
    """The records of a slot's share of a batch, and of the whole batch that comes of that."""
    size, slots = hparams.get("global_batch_size"), max(1, slots_per_trial)
    if isinstance(size, bool) or not isinstance(size, int) or size < slots:
        raise DetcloudError(
            f"hyperparameter global_batch_size is {size!r}: {trialname} needs an integer of at"
            f" least the number of slots, {slots}"
        )
    return size // slots, size // slots * slots


def chunks(lst: Sequence[Item], chunk_size: int) -> Iterator[Sequence[Item]]:
    """Yield a sequence in pieces of `chunk_size` items."""
    for start in range(0, len(lst), chunk_size):
        yield lst[start : start + chunk_size]


def strtobool(val: str) -> bool:
    """Whether a word means yes: any but the usual ones for no."""
    return val.lower() not in _FALSE_WORDS


@accept_names(f="yaml_file")
def safe_load_yaml_with_exceptions(yaml_file: IO[Any] | str) -> Any:
    """The document of a YAML text or open file, plain values only; `1e-3` is a number."""
    yaml = _yaml()
    loader: Any = type("Loader", (yaml.SafeLoader,), {})
    loader.add_implicit_resolver(_FLOAT_TAG, _EXPONENT, list("-+0123456789"))
    return yaml.load(yaml_file, loader)


def yaml_safe_dump(
    data: Any, stream: IO[Any] | None = None, default_flow_style: bool | None = None
) -> str | None:
    """The YAML text of plain values, or None where it is written to `stream`."""
    text: str | None = _yaml().safe_dump(
        data, stream, sort_keys=False, default_flow_style=bool(default_flow_style)
    )
    return text


def _yaml() -> Any:
    try:
        return import_module("yaml")
    except ImportError:
        raise DetcloudError(
            "reading and writing YAML needs the package PyYAML, which is not installed: add it to"
            " the image, or `pip install pyyaml` in startup-hook.sh"
        ) from None
