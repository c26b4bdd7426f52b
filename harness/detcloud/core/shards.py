"""Checkpoints that several processes store together: who stores which file, under which metadata.

Every rank decides from the same facts, so that all decide alike and fail together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from detcloud.shared.checkpoint_limits import CHECKPOINT_FILES_MAX
from detcloud.shared.errors import DetcloudError, InvalidCall


@dataclass(frozen=True)
class Shard:
    """One rank's part of a checkpoint: its files with size and SHA-256, and its metadata; or why it
    has none, in `failure`. With `is_none` it gave no directory of files.
    """

    files: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    failure: str = ""
    is_none: bool = False


def assign_files(shards: Sequence[Shard]) -> dict[str, int]:
    """The rank that stores each file: the lowest of those that have it.

    Raises:
        InvalidCall: no rank has given a directory, or two have different files of one name.
        DetcloudError: a rank has failed, or there are too many files.
    """
    failures = [f"rank {rank}: {item.failure}" for rank, item in enumerate(shards) if item.failure]
    if failures:
        raise DetcloudError(f"the checkpoint was not stored: {'; '.join(failures)}")
    if all(item.is_none for item in shards):
        raise InvalidCall(
            "upload got a directory on no rank of a sharded checkpoint: at least one has to give it"
        )
    owners: dict[str, int] = {}
    for rank, shard in enumerate(shards):
        for name, content in shard.files.items():
            owner = owners.setdefault(name, rank)
            if shards[owner].files[name] != content:
                raise InvalidCall(
                    f"ranks {owner} and {rank} store different files as {name}: give each file a "
                    "name of its own, such as one with the rank in it"
                )
    if len(owners) + 1 > CHECKPOINT_FILES_MAX:
        raise DetcloudError(
            f"the checkpoint has {len(owners)} files, the limit is {CHECKPOINT_FILES_MAX - 1}: "
            "store many small files as one, such as a tar file"
        )
    return owners


def manifest_entries(
    shards: Sequence[Shard], owners: Mapping[str, int]
) -> dict[str, dict[str, Any]]:
    """The manifest's entries of the files that `assign_files` gave to their owners."""
    contents = {name: shards[rank].files[name] for name, rank in owners.items()}
    return {name: {"size": size, "sha256": digest} for name, (size, digest) in contents.items()}


def merge_metadata(shards: Sequence[Shard]) -> dict[str, Any]:
    """The metadata of all ranks in one, maps within each other merged; InvalidCall where two ranks
    disagree.
    """
    merged: dict[str, Any] = {}
    for rank, shard in enumerate(shards):
        _merge(merged, shard.metadata, rank, ())
    return merged


def _merge(
    merged: dict[str, Any], more: Mapping[str, Any], rank: int, place: tuple[str, ...]
) -> None:
    for name, value in more.items():
        if name not in merged:
            merged[name] = {} if isinstance(value, Mapping) else value
        before = merged[name]
        if isinstance(before, dict) and isinstance(value, Mapping):
            _merge(before, value, rank, (*place, name))
        elif before != value:
            path = ".".join((*place, name))
            raise InvalidCall(
                f"rank {rank} stores the checkpoint with metadata {path} = {value!r:.80}, a rank "
                f"below with {before!r:.80}: give it on one rank, or the same on all"
            )
