"""The decorators with which training code caches data sets, and the places of the caches."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from detcloud import core
from detcloud.pytorch.data_layer.cache import BuildStopped, DatasetCache
from detcloud.pytorch.data_layer.dataset import CachedDataset
from detcloud.pytorch.data_layer.source import encode_source
from detcloud.shared.errors import DetcloudError
from detcloud.shared.trial_directory import DATA_LAYER_PATH
from detcloud.storage import CheckpointStore
from detcloud.storage.types.directory import DirectoryStore

Decorator = Callable[[Callable[..., Any]], Callable[..., CachedDataset]]
NAME_BYTES_MAX = 200
_LOCAL_PATHS = {
    "shared_fs": "host_storage_path",
    "s3": "local_cache_host_path",
    "gcs": "local_cache_host_path",
}


class DataLayer:
    """The data layer of a trial, configured by the section `data_layer`."""

    def __init__(self, context: core.Context) -> None:
        self._context = context

    def cache_train_dataset(
        self,
        dataset_id: str,
        dataset_version: str,
        shuffle: bool = False,
        skip_shuffle_at_epoch_end: bool = False,
        *,
        num_workers: int = 0,
    ) -> Decorator:
        """Return a decorator for a function that creates the training data set (map-style).

        The decorated function returns a CachedDataset. All processes of the trial must call the
        decorated function. If the cache lacks this id and version, or its copy is damaged, the
        original function is called and the samples are stored. Otherwise the original function is
        not called. While the original function runs and its samples are read, Python's, NumPy's and
        torch's random generators have a seed from the data set's name. Storing the samples prints
        progress, and deletes old unfinished copies from the store and the local cache.

        If a request to stop the trial arrives meanwhile, the decorated function raises SystemExit
        with 0, and the trial resumes later. The decorated function raises DetcloudError for an
        empty data set, for samples that a cache cannot store, for failures of the store or disk,
        and if another process of the trial has exited. Errors of the original function are raised
        unchanged.

        Args:
            dataset_id: the name of the data set.
            dataset_version: the version. Another version is another cache.
            shuffle: shuffle each epoch, in an order that the trial's seed decides.
            skip_shuffle_at_epoch_end: with `shuffle`, use the same order in all epochs.
            num_workers: worker processes, for each process of the trial, that compute samples. With
                0, the trial's processes compute the samples.

        Raises:
            DetcloudError: the id or version cannot name a folder.
        """
        return self._decorator(
            ("train", dataset_id, dataset_version),
            num_workers,
            is_shuffled=shuffle,
            is_shuffled_once=shuffle and skip_shuffle_at_epoch_end,
        )

    def cache_validation_dataset(
        self,
        dataset_id: str,
        dataset_version: str,
        shuffle: bool = False,
        *,
        num_workers: int = 0,
    ) -> Decorator:
        """Return a decorator for a function that creates the validation data set (map-style).

        The decorated function behaves as the function that `cache_train_dataset` decorates.

        Args:
            dataset_id: the name of the data set.
            dataset_version: the version. Another version is another cache.
            shuffle: whether all validations have the same shuffled order.
            num_workers: worker processes, for each process of the trial, that compute samples. With
                0, the trial's processes compute the samples.

        Raises:
            DetcloudError: the id or version cannot name a folder.
        """
        return self._decorator(
            ("val", dataset_id, dataset_version),
            num_workers,
            is_shuffled=shuffle,
            is_shuffled_once=shuffle,
        )

    def _decorator(self, key: tuple[str, str, str], num_workers: int, **order: bool) -> Decorator:
        """Return the decorator of a cache.

        `key` is the split, the id and the version. `order` has the arguments of CachedDataset.
        Raises DetcloudError for an id or version that cannot name a folder.
        """
        split, dataset_id, dataset_version = key
        name = cache_name(dataset_id, dataset_version, split)

        def decorate(make_dataset: Callable[..., Any]) -> Callable[..., CachedDataset]:
            @functools.wraps(make_dataset)
            def make_cached_dataset(*arguments: Any, **named: Any) -> CachedDataset:
                make = partial(make_dataset, *arguments, **named)
                return self._open(name, make, num_workers, **order)

            return make_cached_dataset

        return decorate

    def _open(
        self, name: str, make: Callable[[], Any], num_workers: int, **order: bool
    ) -> CachedDataset:
        """Prepare the cache `name`, and return the data set.

        `make` creates the original data set. All processes must call this. Print where samples are
        read or built. Raises SystemExit(0) if a request to stop the trial arrives meanwhile.

        Raises DetcloudError for invalid samples, settings, failures of the store or disk, and if
        another process of the trial has exited. Raises errors of `make`.
        """
        info, group = self._context.info, self._context.distributed
        layer = info.data_layer or info.config.get("data_layer") or {}
        store, root = open_place(layer)

        def log_line(text: str) -> None:
            print(f"[detcloud] data set {name}: {text}", flush=True)

        if self._context.on_cluster and DATA_LAYER_PATH not in os.environ:
            log_line(f"{root} ends with this run: data_layer names no folder of the machine")
        preempt = self._context.preempt
        cache = DatasetCache(store, root, name, group, log_line, preempt.is_requested)
        try:
            manifest = cache.prepare(partial(encode_source, make, name, num_workers))
        except BuildStopped:
            preempt.note_stop()
            if self._context.is_chief:
                log_line("the trial stops here, and prepares it again later")
            raise SystemExit(0) from None
        return CachedDataset(cache.folder, manifest, seed=info.trial_seed, **order)


def cache_name(dataset_id: str, dataset_version: str, split: str) -> str:
    """Return the name of a cache, `ID/VERSION_SPLIT`, which is the folder below the root.

    Raises DetcloudError if the id or version is no text, is empty, begins with a dot, or is too
    long.
    """
    for what, text in (("dataset_id", dataset_id), ("dataset_version", dataset_version)):
        if not isinstance(text, str) or not text or text.startswith("."):
            raise DetcloudError(
                f"{what} is {text!r:.80}: expected a text that does not begin with a dot"
            )
        if len(quote(text, safe="")) > NAME_BYTES_MAX:
            raise DetcloudError(f"{what} {text!r:.80} is too long for the name of a folder")
    return f"{quote(dataset_id, safe=' ')}/{quote(dataset_version, safe=' ')}_{split}"


def open_place(layer: Mapping[str, Any]) -> tuple[CheckpointStore, Path]:
    """Return the store of a `data_layer` section, and the folder of this machine to read from.

    Raises DetcloudError for an unknown type, and StorageError for a store that cannot be used.
    """
    kind = str(layer.get("type") or "shared_fs")
    if kind not in _LOCAL_PATHS:
        known = ", ".join(sorted(_LOCAL_PATHS))
        raise DetcloudError(f"data_layer.type is {kind!r:.80}: expected one of {known}")
    root = _local_folder(layer.get(_LOCAL_PATHS[kind]))
    if kind == "shared_fs":
        return DirectoryStore(root), root
    place = {**layer, "prefix": layer.get("bucket_directory_path")}
    if kind == "gcs":
        from detcloud.storage.types.gcs import build_data_store as build_gcs_store

        return build_gcs_store(place), root
    from detcloud.storage.types.s3 import build_data_store

    return build_data_store(place), root


def _local_folder(configured: Any) -> Path:
    """Return the folder from the environment variable of the agent, else the configured folder.

    Without both, return a folder in the user's cache. The path is absolute; create nothing.
    """
    if named := os.environ.get(DATA_LAYER_PATH) or configured:
        return Path(named).absolute()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "detcloud" / "data-layer"
