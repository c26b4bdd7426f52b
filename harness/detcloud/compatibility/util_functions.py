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
    """Return whether a function has a parameter `name`, or a parameter at position `pos`."""
    names = inspect.getfullargspec(fn).args
    return name in names or (pos is not None and pos < len(names))


def is_overridden(full_method: Any, parent_class: type) -> bool:
    """Return whether a method is defined by another class than `parent_class`.

    Classes are compared by name. An object without a qualified name is not overridden.
    """
    place = getattr(full_method, "__qualname__", None)
    return place is not None and place.partition(".")[0] != parent_class.__name__


def get_member_func(obj: Any, func_name: str) -> Any:
    """Return the callable attribute `func_name` of an object, or None."""
    member = getattr(obj, func_name, None)
    return member if callable(member) else None


def merge_dicts(base_dict: Mapping[Any, Any], source_dict: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return a deep copy of `base_dict` in which values of `source_dict` replace or extend values.

    Mappings in both are merged recursively.
    """
    merged = copy.deepcopy(dict(base_dict))
    for key, value in source_dict.items():
        inner = base_dict.get(key)
        is_map = isinstance(value, Mapping) and isinstance(inner, Mapping)
        merged[key] = merge_dicts(inner, value) if is_map else value  # type: ignore[arg-type]
    return merged


def is_numerical_scalar(n: Any) -> bool:
    """Return whether a value is a number, or an array with a single element."""
    if isinstance(n, numbers.Number):
        return True
    return hasattr(n, "item") and getattr(n, "size", 0) == 1


def filter_duplicates(
    in_list: Collection[Any], sorter: Callable[[Collection[Any]], Collection[Any]] = sorted
) -> set[Any]:
    """Return the items that occur more than once in a list. `sorter` must bring equal items
    together.
    """
    items = list(sorter(in_list))
    return {after for before, after in itertools.pairwise(items) if before == after}


def rmtree_nfs_safe(
    path: str | os.PathLike[str],
    ignore_errors: bool = False,
    onerror: Callable[..., Any] | None = None,
) -> None:
    """Remove a folder with its content. Try up to four times, for network file systems.

    `ignore_errors` and `onerror(function, path, error)` are those of shutil.rmtree. Raises OSError
    if the last attempt fails.
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
    """Make `dst` a symbolic link to `src`.

    Delete an existing file, link or folder at `dst` first.
    """
    target = Path(dst)
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)
    target.symlink_to(src)


def preserve_random_state(fn: Callable[..., Returned]) -> Callable[..., Returned]:
    """Decorate a function so that Python's random generator has the same state after a call."""

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
    """Return the bytes of an object in a bucket of Google Cloud Storage.

    Try up to `n_retries` times, with growing pauses of at most `max_backoff` seconds. Raises
    DetcloudError if all attempts fail, or without attempts.
    """
    failure: object = f"n_retries is {n_retries}, and must be at least 1"
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
    """Return `batch_metrics` and `avg_metrics`, with the mean of each metric or None without a
    mean.

    The result has `num_inputs`, too, unless None.
    """
    # This import loads torch.
    from detcloud.pytorch.metrics import MetricAverage

    average = MetricAverage()
    for metrics in batch_metrics:
        average.add(dict(metrics))
    names = dict.fromkeys(name for metrics in batch_metrics for name in metrics)
    counts = {} if num_inputs is None else {"num_inputs": num_inputs}
    averages = {**names, **average.average()}
    return {"batch_metrics": batch_metrics, "avg_metrics": averages, **counts}


def wrap_metrics(metrics: Any, stop_requested: bool, **_others: bool) -> dict[str, Any]:
    """Return a workload's answer, `{"metrics": ..., "stop_requested": ...}`. Others are ignored."""
    return {"metrics": metrics, "stop_requested": stop_requested}


def calculate_batch_sizes(
    hparams: Mapping[str, Any], slots_per_trial: int, trialname: str
) -> tuple[int, int]:
    """Return the records of a slot's share of a batch, and of the whole batch without a remainder.

    Raises DetcloudError, naming `trialname`, unless hyperparameter `global_batch_size` is an
    integer of at least the number of slots.
    """
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
    """Return False for "", n, no, f, false, off and 0 in any case, and True for other words."""
    return val.lower() not in _FALSE_WORDS


@accept_names(f="yaml_file")
def safe_load_yaml_with_exceptions(yaml_file: IO[Any] | str) -> Any:
    """Return the document of a YAML text or open file, with plain values; `1e-3` is a number.

    Raises yaml.YAMLError for an invalid document, and DetcloudError without PyYAML.
    """
    yaml = _yaml()
    loader: Any = type("Loader", (yaml.SafeLoader,), {})
    loader.add_implicit_resolver(_FLOAT_TAG, _EXPONENT, list("-+0123456789"))
    return yaml.load(yaml_file, loader)


def yaml_safe_dump(
    data: Any, stream: IO[Any] | None = None, default_flow_style: bool | None = None
) -> str | None:
    """Return plain values as YAML text, or write the text to `stream` and return None.

    Raises DetcloudError without PyYAML.
    """
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
