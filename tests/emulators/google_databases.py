"""Databases, backups and functions of a Google project for restores of a cluster's state.

Documents are those of Google's emulator of Firestore. The emulator has no interface for databases,
and keeps no history, so that this model serves databases, backups, operations, triggers and
services. A backup and a moment are copies of the documents in further databases of the emulator.
"""

import json
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlsplit

from infra.gcp.document_store import DatabaseDocuments
from infra.gcp.google_api import GoogleError, JsonObject, describe_refusal
from tests.emulators.firestore import Firestore
from tests.emulators.google_buckets import GoogleBuckets
from tests.patience import ANSWER_SECONDS_MAX

PROJECT = "tests-1"
PLACE = f"projects/{PROJECT}"


class ProcessEnd(Exception):
    """The process of a restore ended."""


@dataclass
class GoogleDatabases:
    """A project as the deployer sees it.

    `databases`: the properties of each database by id. `real`: the emulator's database of each
    database. `backups`: the emulator's database of each backup by name. `moments`: the emulator's
    database of each moment that can be read. `scaling`: the scaling of each service. `triggers`:
    the ids of triggers. `exports`: the emulator's database of each export by URL. `imported`: the
    URLs of the exports in each database. `changes_left`: the changing calls after which the process
    ends.
    """

    firestore: Firestore
    databases: dict[str, dict[str, Any]] = field(default_factory=dict)
    real: dict[str, str] = field(default_factory=dict)
    backups: dict[str, str] = field(default_factory=dict)
    moments: dict[str, str] = field(default_factory=dict)
    scaling: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    triggers: set[str] = field(default_factory=set)
    exports: dict[str, str] = field(default_factory=dict)
    imported: dict[str, list[str]] = field(default_factory=dict)
    buckets: GoogleBuckets = field(default_factory=GoogleBuckets)
    changes_left: int | None = None
    changes: int = 0

    def call(self, method: str, url: str, body: JsonObject | None = None) -> JsonObject:
        """Answer like Google."""
        is_read = method == "GET"
        if not is_read:
            self.changes += 1
            if self.changes_left is not None and self.changes > self.changes_left:
                raise ProcessEnd
        split = urlsplit(url)
        path = split.path.removeprefix("/v1/").removeprefix("/v2/")
        if "/documents" in path:
            return self._call_documents(method, url, body)
        last = path.rpartition("/")[2]
        service = split.netloc.partition(".")[0]
        if service == "run":
            return self._scale(last, body)
        if service == "eventarc":
            return self._trigger(method, last)
        if service == "storage":
            return self.buckets.call(method, url)
        if method == "POST" and path == f"{PLACE}/databases":
            return self._create(parse_qs(split.query)["databaseId"][0], dict(body or {}))
        return self._call_firestore(method, path, body)

    def _call_firestore(self, method: str, path: str, body: JsonObject | None) -> JsonObject:
        if path == f"{PLACE}/databases:restore":
            return self._restore(dict(body or {}))
        if path == f"{PLACE}/locations/-/backups":
            return {"backups": [self._backup(name) for name in self.backups]}
        if "/backups/" in path:
            return self._backup(path)
        if path.endswith("/operations"):
            urls = self.imported.get(path.split("/")[3], [])
            return {
                "operations": [{"done": True, "metadata": {"inputUriPrefix": url}} for url in urls]
            }
        if path.endswith(":importDocuments"):
            database = path.rpartition("/")[2].partition(":")[0]
            return self._import(database, dict(body or {})["inputUriPrefix"])
        if "/operations/" in path:
            return {"done": True}
        return self._database(method, path.rpartition("/")[2], body)

    def copy(self, database: str) -> str:
        """Copy the documents of a database into another of the emulator, and return its name."""
        target = self.firestore.new_database()
        root = f"{self.firestore.url}/v1"
        source = DatabaseDocuments(self, f"{PLACE}/databases/{database}", root=root)
        copies = DatabaseDocuments(Raw(), f"{PLACE}/databases/{target}", root=root)
        for item in list(source.read()):
            copies.write([item])
        return target

    def make_backup(self, database: str, name: str) -> str:
        """Make a backup, and return its full name."""
        full = f"{PLACE}/locations/us-central1/backups/{name}"
        self.backups[full] = self.copy(database)
        return full

    def make_export(self, database: str, bucket: str, folder: str) -> str:
        """Export a database into a folder of a bucket, and return the URL gs://BUCKET/FOLDER."""
        url = f"gs://{bucket}/{folder}"
        self.exports[url] = self.copy(database)
        for name in ("output-0", f"{folder.rpartition('/')[2]}.overall_export_metadata"):
            self.buckets.write(bucket, f"{folder}/{name}", b"-")
        return url

    def _create(self, database: str, body: dict[str, Any]) -> JsonObject:
        assert body["type"] == "FIRESTORE_NATIVE"
        assert body["locationId"]
        if database in self.databases:
            raise GoogleError(409, "the database exists")
        self.real[database] = self.firestore.new_database()
        self.databases[database] = {
            "pointInTimeRecoveryEnablement": "POINT_IN_TIME_RECOVERY_DISABLED"
        }
        return {"name": f"{PLACE}/databases/{database}/operations/create"}

    def _import(self, database: str, url: str) -> JsonObject:
        """Write the documents of an export over those of the database, as an import does."""
        root = f"{self.firestore.url}/v1"
        path = f"{PLACE}/databases/{self.exports[url]}"
        target = DatabaseDocuments(Raw(), f"{PLACE}/databases/{self.real[database]}", root=root)
        for item in list(DatabaseDocuments(Raw(), path, root=root).read()):
            target.write([item])
        self.imported.setdefault(database, []).append(url)
        return {"name": f"{PLACE}/databases/{database}/operations/import"}

    def _call_documents(self, method: str, url: str, body: JsonObject | None) -> JsonObject:
        split = urlsplit(url)
        query = {key: values[0] for key, values in parse_qs(split.query).items()}
        _, _, rest = split.path.partition("/databases/")
        database, _, below = rest.partition("/")
        real = self.real.get(database, database)
        moment = query.pop("readTime", None)
        if moment is not None:
            assert moment.endswith(":00Z"), "Firestore keeps versions of whole minutes"
            real = self.moments[moment]
        text = json.dumps(body or {}).replace(f"/databases/{database}/", f"/databases/{real}/")
        words = "&".join(f"{key}={value}" for key, value in query.items())
        place = f"{self.firestore.url}/v1/{PLACE}/databases/{real}/{below}?{words}"
        return Raw().call(method, place, json.loads(text) if body else None)

    def _scale(self, service: str, body: JsonObject | None) -> JsonObject:
        if body is not None:
            self.scaling[service] = body["scaling"]
        return {"scaling": self.scaling.get(service, {})}

    def _trigger(self, method: str, name: str) -> JsonObject:
        if name not in self.triggers:
            raise GoogleError(404, "no such trigger")
        if method == "DELETE":
            self.triggers.remove(name)
        return {"name": name}

    def _backup(self, name: str) -> JsonObject:
        if name not in self.backups:
            raise GoogleError(404, "no such backup")
        made = f"2026-11-{list(self.backups).index(name) + 1:02d}T03:00:00Z"
        database = f"{PLACE}/databases/detcloud-vision"
        return {"name": name, "database": database, "snapshotTime": made, "state": "READY"}

    def _restore(self, body: dict[str, Any]) -> JsonObject:
        name, backup = body["databaseId"], body["backup"]
        if name in self.databases:
            raise GoogleError(409, "the database exists")
        self.real[name] = self.backups[backup]
        self.real[name] = self.copy(name)
        self.databases[name] = {
            "pointInTimeRecoveryEnablement": "POINT_IN_TIME_RECOVERY_DISABLED",
            "sourceInfo": {"backup": {"backup": backup}},
        }
        return {"name": f"{PLACE}/databases/{name}/operations/1"}

    def _database(self, method: str, name: str, body: JsonObject | None) -> JsonObject:
        if name not in self.databases:
            raise GoogleError(404, "no such database")
        if method == "DELETE":
            del self.databases[name]
            self.imported.pop(name, None)
            return {}
        self.databases[name].update(body or {})
        return self.databases[name]


class Raw:
    """Calls of the emulator."""

    def call(self, method: str, url: str, body: JsonObject | None = None) -> JsonObject:
        """Send a request; raise GoogleError if the emulator refuses."""
        content = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": "Bearer owner", "Content-Type": "application/json"}
        request = urllib.request.Request(url, content, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_SECONDS_MAX) as answer:
                found: JsonObject = json.load(answer)
        except HTTPError as error:
            raise GoogleError(error.code, describe_refusal(error.read())) from None
        return found
