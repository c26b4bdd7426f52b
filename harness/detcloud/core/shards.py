"""The contents of a checkpoint that several processes store: the storing rank of each file,
metadata.

Every rank computes both from the same facts, so that all ranks agree and fail together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from detcloud.shared.checkpoint_limits import CHECKPOINT_FILES_MAX
from detcloud.shared.dotted_paths import join_names
from detcloud.shared.errors import DetcloudError, InvalidCall


@dataclass(frozen=True)
class Shard:
    """The part of a checkpoint that a rank contributes."""

    files: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    """The size in bytes and the SHA-256 of each file, by name."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """The metadata that the rank gave."""
    failure: str = ""
    """The reason why the rank has no files; empty otherwise."""
    is_none: bool = False
    """Whether the rank gave no directory."""


def assign_files(shards: Sequence[Shard]) -> dict[str, int]:
    """Return the rank that stores each file, by name: the lowest rank that has the file.

    Raises InvalidCall if no rank has a directory, or if ranks have different files of one name.
    Raises DetcloudError if a rank has failed, or if the checkpoint has too many files.
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
    """Return the manifest entries, size and SHA-256, of the files in `owners`, by name.

    `owners` is the result of `assign_files`.
    """
    contents = {name: shards[rank].files[name] for name, rank in owners.items()}
    return {name: {"size": size, "sha256": digest} for name, (size, digest) in contents.items()}


def merge_metadata(shards: Sequence[Shard]) -> dict[str, Any]:
    """Return the merged metadata of all ranks; dicts are merged key by key, at every depth.

    Raises InvalidCall if two ranks have different values for one key, for example two lists.
    """
    merged: dict[str, Any] = {}
    for rank, shard in enumerate(shards):
        _merge(merged, shard.metadata, rank, ())
    return merged


def _merge(
    merged: dict[str, Any], more: Mapping[str, Any], rank: int, place: tuple[str, ...]
) -> None:
    """Merge `more` into `merged`. `more` is the metadata of `rank` at the path `place`.

    Raises InvalidCall if both have different values for a key.
    """
    for name, value in more.items():
        if name not in merged:
            merged[name] = {} if isinstance(value, Mapping) else value
        before = merged[name]
        if isinstance(before, dict) and isinstance(value, Mapping):
            _merge(before, value, rank, (*place, name))
        elif before != value:
            path = join_names((*place, name))
            raise InvalidCall(
                f"rank {rank} stores the checkpoint with metadata {path} = {value!r:.80}, a rank "
                f"below with {before!r:.80}: give it on one rank, or the same on all"
            )
