"""A cluster seen through its HTTP API (docs/api.md)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, urlencode

from detcloud import DetcloudError
from detcloud.client.endpoint import Endpoint, find_endpoint
from detcloud.client.experiment import Experiment
from detcloud.client.trial import Checkpoint, Trial
from detcloud.http import Client

API = "/api/v1"
PAGE_ITEMS_MAX = 500


class Cluster:
    """One cluster and a token for it. Serves one thread at a time.

    Every method may raise `detcloud.http.ApiError` (the cluster refused, with the reason) and
    `detcloud.http.Unreachable` (no answer, after retries).
    """

    def __init__(self, url: str, token: str) -> None:
        self.url = url.rstrip("/")
        self.http = Client(self.url, token)

    @classmethod
    def from_environment(cls, url: str | None = None) -> Self:
        """The cluster that `detcloud` commands would use here (`endpoint.find_endpoint`).

        Raises:
            DetcloudError: none is configured and the embedded one is not running.
        """
        endpoint = find_endpoint(url)
        if endpoint is None:
            raise DetcloudError(
                "no cluster is configured and none runs here; start one with `detcloud up`, "
                "or set DETCLOUD_URL and DETCLOUD_TOKEN"
            )
        return cls.at(endpoint)

    @classmethod
    def at(cls, endpoint: Endpoint) -> Self:
        return cls(endpoint.url, endpoint.token)

    def create_experiment(
        self,
        config: str | Path | Mapping[str, Any],
        model_dir: str | Path,
        *,
        overrides: Sequence[str] = (),
        template: str | None = None,
        paused: bool = False,
        test_mode: bool = False,
    ) -> Experiment:
        """Uploads the model code unless the cluster has it, and submits an experiment.

        Args:
            config: the path of a YAML file, or the configuration as a mapping.
            model_dir: the folder with the code; `.detignore` in it names what stays here.
            overrides: `a.b=value`, the values being YAML.

        Raises:
            DetcloudError: the files cannot be read or packed.
        """
        text = _config_text(config)
        body = {
            "config": text,
            "template": template,
            "overrides": list(overrides),
            "model_code": self.upload_model_code(model_dir),
            "paused": paused,
            "test_mode": test_mode,
            "validate_only": False,
        }
        return Experiment(self, self.post("/experiments", body))

    def upload_model_code(self, model_dir: str | Path) -> str:
        """Packs a folder, sends it if the cluster lacks it, and returns its SHA-256.

        Raises:
            detcloud.archive.ArchiveInvalid: the folder is too large or holds what cannot be sent.
        """
        from detcloud.archive import pack
        from detcloud.client.ignore import kept_names

        with pack(Path(model_dir), kept_names(Path(model_dir))) as archive:
            asked = {"sha256": archive.sha256, "size": archive.size}
            answer = self.post("/model-code", asked)
            if answer["needed"]:
                upload = answer["upload"]
                with archive.path.open("rb") as file:
                    self.http.upload(
                        upload["path"],
                        file,
                        archive.size,
                        method=upload.get("method", "PUT"),
                        headers=upload.get("headers") or {},
                    )
            return archive.sha256

    def experiments(
        self, *, states: Sequence[str] = (), user: str | None = None, limit: int | None = None
    ) -> Iterator[Experiment]:
        """Newest first; pages are fetched as they are needed."""
        items = self.items("/experiments", limit, state=",".join(states) or None, user=user)
        return (Experiment(self, item) for item in items)

    def experiment(self, experiment_id: int) -> Experiment:
        return Experiment(self, self.get(f"/experiments/{experiment_id}"))

    def trial(self, trial_id: int) -> Trial:
        return Trial(self, self.get(f"/trials/{trial_id}"))

    def checkpoint(self, uuid_prefix: str) -> Checkpoint:
        """The checkpoint whose UUID begins with `uuid_prefix`, which must fit one only."""
        return Checkpoint(self, self.get(f"/checkpoints/{quote(uuid_prefix, safe='')}"))

    def agents(self) -> list[dict[str, Any]]:
        return list(self.items("/agents"))

    def overview(self) -> dict[str, Any]:
        """`{cluster_id, version, resource_pools}`."""
        overview: dict[str, Any] = self.get("/cluster")
        return overview

    def get(self, path: str, **query: object) -> Any:
        """GET below the API's base path; queries that are None are left out."""
        given = {name: value for name, value in query.items() if value is not None}
        suffix = f"?{urlencode(given)}" if given else ""
        return self.http.request("GET", f"{API}{path}{suffix}")

    def items(
        self, path: str, limit: int | None = None, **query: object
    ) -> Iterator[dict[str, Any]]:
        """Every item of a list, or the first `limit`, over as many pages as that takes."""
        cursor: str | None = None
        while limit is None or limit > 0:
            size = PAGE_ITEMS_MAX if limit is None else min(limit, PAGE_ITEMS_MAX)
            page = self.get(path, **query, limit=size, cursor=cursor)
            yield from page["items"]
            cursor = page["next_cursor"]
            if cursor is None:
                return
            limit = None if limit is None else limit - len(page["items"])

    def post(self, path: str, body: object = None) -> Any:
        """A mutation under a fresh idempotency key, so that its retries happen once."""
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        return self.http.request("POST", f"{API}{path}", {} if body is None else body, headers)

    def close(self) -> None:
        """Closes the kept connection; the next request opens one again."""
        self.http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _config_text(config: str | Path | Mapping[str, Any]) -> str:
    """JSON is YAML, so that a mapping needs no YAML writer."""
    if isinstance(config, Mapping):
        return json.dumps(config)
    try:
        return Path(config).read_text(encoding="utf-8")
    except OSError as error:
        raise DetcloudError(f"{config} could not be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DetcloudError(f"{config} is not UTF-8 text; expected a YAML file") from None
