"""Buckets of Cloud Storage with versions and copies, which the emulator of the tests lacks.

The model serves the part of the JSON interface that restores use. Source: Cloud Storage JSON API,
"Objects: list", "Objects: rewrite" and "Object Versioning".
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from infra.gcp.google_api import GoogleError, JsonObject

# Two items, so that tests read several pages.
PAGE_ITEMS = 2
# Larger objects are copied in two calls.
SINGLE_BYTES_MAX = 100


@dataclass
class Generation:
    """A version of an object. `deleted`: the end of its time as the live version."""

    name: str
    content: bytes
    number: int
    created: datetime
    deleted: datetime | None = None

    def to_json(self) -> JsonObject:
        times = {"timeCreated": self.created.isoformat()}
        if self.deleted is not None:
            times["timeDeleted"] = self.deleted.isoformat()
        size, generation = str(len(self.content)), str(self.number)
        return {"name": self.name, "size": size, "generation": generation, **times}


@dataclass
class GoogleBuckets:
    """All buckets of a project.

    `generations`: the generations of each bucket. `versioned`: the buckets that keep versions.
    `now`: the time of the next change, which advances by a second with each change.
    """

    generations: dict[str, list[Generation]] = field(default_factory=dict)
    versioned: set[str] = field(default_factory=set)
    now: datetime = datetime(2026, 11, 20, 12, tzinfo=UTC)

    def create(self, bucket: str, *, keeps: bool = False) -> None:
        """Create an empty bucket; with `keeps`, one that keeps versions."""
        self.generations[bucket] = []
        if keeps:
            self.versioned.add(bucket)

    def write(self, bucket: str, name: str, content: bytes) -> None:
        """Store an object."""
        self.delete(bucket, name)
        number = 1 + sum(map(len, self.generations.values()))
        self.generations[bucket].append(Generation(name, content, number, self._advance()))

    def delete(self, bucket: str, name: str) -> None:
        """Delete the live version of an object; do nothing for a missing object."""
        for generation in list(self.generations[bucket]):
            if generation.name == name and generation.deleted is None:
                generation.deleted = self._advance()
                if bucket not in self.versioned:
                    self.generations[bucket].remove(generation)

    def live(self, bucket: str) -> dict[str, bytes]:
        """Return the live content of each object of a bucket."""
        return {
            generation.name: generation.content
            for generation in self.generations[bucket]
            if generation.deleted is None
        }

    def transfer(self, source: str, target: str) -> None:
        """Make the live objects of `target` equal to `source`, as a transfer does that deletes."""
        wanted, present = self.live(source), self.live(target)
        for name in present.keys() - wanted.keys():
            self.delete(target, name)
        for name, content in wanted.items():
            if present.get(name) != content:
                self.write(target, name, content)

    def call(self, method: str, url: str, body: JsonObject | None = None) -> JsonObject:
        """Answer like Cloud Storage."""
        split = urlsplit(url)
        query = {key: values[0] for key, values in parse_qs(split.query).items()}
        words = [unquote(word) for word in split.path.partition("/b/")[2].split("/")]
        if words[0] not in self.generations:
            raise GoogleError(404, "The specified bucket does not exist.")
        match method, words:
            case "GET", [bucket]:
                return {"name": bucket}
            case "GET", [bucket, "o"]:
                return self._list(bucket, query)
            case "POST", [source, "o", name, "rewriteTo", "b", target, "o", copy]:
                return self._rewrite(source, name, target, copy, query)
        raise AssertionError(f"{method} {url} is not modelled")

    def _list(self, bucket: str, query: Mapping[str, str]) -> JsonObject:
        found = [
            generation.to_json()
            for generation in sorted(self.generations[bucket], key=lambda item: item.name)
            if generation.name.startswith(query.get("prefix", ""))
            and (generation.deleted is None or query.get("versions") == "true")
        ]
        first = int(query.get("pageToken", "0"))
        last = first + PAGE_ITEMS
        more: dict[str, Any] = {"nextPageToken": str(last)} if last < len(found) else {}
        return {"items": found[first:last], **more}

    def _rewrite(
        self, source: str, name: str, target: str, copy: str, query: Mapping[str, str]
    ) -> JsonObject:
        wanted = query.get("sourceGeneration")
        for generation in self.generations[source]:
            is_wanted = str(generation.number) == wanted
            if generation.name == name and (is_wanted or (not wanted and not generation.deleted)):
                if len(generation.content) > SINGLE_BYTES_MAX and "rewriteToken" not in query:
                    return {"done": False, "rewriteToken": "a+b="}
                self.write(target, copy, generation.content)
                return {"done": True}
        raise GoogleError(404, "No such object")

    def _advance(self) -> datetime:
        self.now += timedelta(seconds=1)
        return self.now
