"""The manifest of a cached data set, which makes files a valid cache."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from detcloud.pytorch.data_layer.shard import Shard
from detcloud.shared.errors import DetcloudError

FORMAT = 1


class DamagedManifest(ValueError):
    """A manifest cannot be read, or names a data set or generation that was not requested."""


@dataclass(frozen=True)
class Manifest:
    """A complete cache."""

    name: str
    """The name `ID/VERSION_SPLIT`."""
    generation: int
    """The number of the build that succeeded. A damaged generation is replaced by the next."""
    build: str
    """The folder with the shards, beside the manifest."""
    shards: tuple[Shard, ...]
    """The shards in the order of the samples."""

    @property
    def samples(self) -> int:
        """The number of samples in all shards."""
        return sum(shard.samples for shard in self.shards)

    @property
    def size_bytes(self) -> int:
        """The size of all shards."""
        return sum(shard.size_bytes for shard in self.shards)

    def to_json(self) -> bytes:
        """Return the manifest in the stored form, JSON that `parse` reads."""
        fields: dict[str, Any] = {
            "format": FORMAT,
            "name": self.name,
            "generation": self.generation,
            "build": self.build,
            "shards": [shard.to_json() for shard in self.shards],
        }
        return json.dumps(fields).encode()

    @classmethod
    def parse(cls, text: bytes, name: str, generation: int) -> Manifest:
        """Return the manifest of the data set `name` and of `generation`, parsed from the text.

        Raises DamagedManifest for an invalid text, or if the text has a different name or
        generation. Raises DetcloudError for a manifest of a newer version.
        """
        try:
            fields = json.loads(text)
            if fields["format"] > FORMAT:
                raise DetcloudError(
                    f"data set {name} was cached by a newer version of detcloud: use that, or "
                    "another dataset_version"
                )
            if (fields["name"], fields["generation"]) != (name, generation):
                raise ValueError("it is another data set's")
            build = str(fields["build"])
            if not build or "/" in build or build.startswith("."):
                raise ValueError(f"{build!r} is not a folder")
            shards = tuple(Shard.parse(shard) for shard in fields["shards"])
            if not shards:
                raise ValueError("it names no files")
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            raise DamagedManifest(f"the manifest of {name}: {error!r:.200}") from error
        return cls(name, generation, build, shards)
