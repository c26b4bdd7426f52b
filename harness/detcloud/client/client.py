"""A cluster seen through its HTTP API (docs/api.md)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar, Unpack

from detcloud.client.agent import Agent
from detcloud.client.checkpoint import Checkpoint
from detcloud.client.config_text import read_config_text
from detcloud.client.endpoint import find_endpoint
from detcloud.client.experiment import Experiment
from detcloud.client.experiment_list import (
    ExperimentFilters,
    Project,
    Workspace,
    read_experiments,
    report_omitted,
)
from detcloud.client.job import Job, JobChange, job_path
from detcloud.client.model import Model, model_path, sort_models, workspaces_text
from detcloud.client.records import AppliedConfiguration, CostReport, Identity, Overview
from detcloud.client.resource import path_segment
from detcloud.client.resource_pool import ResourcePool, pool_path
from detcloud.client.template import Template, template_path
from detcloud.client.token import Token
from detcloud.client.trial import Trial
from detcloud.shared.errors import DetcloudError
from detcloud.shared.http import ApiError, Transport, query_text

API = "/api/v1"
PAGE_ITEMS_MAX = 500
# The answers of stores to a request that would replace an object and may not.
REPLACING = (403, 409, 412)

Record = TypeVar("Record")
OnProgress = Callable[[int, int], None]


class Client:
    """One cluster and a token for it. Serves one thread at a time.

    `Client()` finds both as the commands do: DETCLOUD_URL and DETCLOUD_TOKEN, the stored
    credentials, or the local cluster (`endpoint.find_endpoint`).

    Every method may raise `detcloud.shared.http.ApiError` (the cluster refused, with the reason)
    and `detcloud.shared.http.Unreachable` (no answer, after retries), which are DetcloudErrors.

    Raises:
        NoCluster: none is configured and the local one does not run.
        DetcloudError: the address or the token cannot be one.
    """

    def __init__(self, url: str | None = None, token: str | None = None) -> None:
        if url is None or token is None:
            endpoint = find_endpoint(url)
            if endpoint is None:
                raise NoCluster(
                    "no cluster is configured and none runs here; start one with `detcloud up`, "
                    "or set DETCLOUD_URL and DETCLOUD_TOKEN"
                )
            url, token = endpoint.url, token or endpoint.token
        self.url = url.rstrip("/")
        try:
            self.http = Transport(self.url, token)
        except ValueError as error:
            raise DetcloudError(str(error)) from None

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    def create_experiment(
        self,
        config: str | Path | Mapping[str, Any],
        model_dir: str | Path | None = None,
        *,
        overrides: Sequence[str] = (),
        template: str | None = None,
        paused: bool = False,
        test_mode: bool = False,
        includes: Sequence[str | Path] = (),
        on_progress: OnProgress | None = None,
    ) -> Experiment:
        """Uploads the model code unless the cluster has it, and submits an experiment.

        Args:
            config: the path of a YAML file, or the configuration as a mapping of plain values.
            model_dir: the folder with the code; `.detignore` in it names what stays here.
            overrides: `a.b=value`, the values being YAML.
            template: the name of a template to complete the configuration with.
            includes: more files and folders, which lie beside the code under their last names.
            on_progress: gets the bytes of code that were sent and the bytes in all.

        Raises:
            DetcloudError: the files cannot be read or packed, or the mapping cannot be sent.
        """
        text = read_config_text(config)
        body = {
            "config": text,
            "template": template,
            "overrides": list(overrides),
            "model_code": self.upload_model_code(
                model_dir, includes=includes, on_progress=on_progress
            ),
            "paused": paused,
            "test_mode": test_mode,
            "validate_only": False,
        }
        return Experiment(self, self.post("/experiments", body))

    def check_experiment(
        self,
        config: str | Path | Mapping[str, Any],
        *,
        overrides: Sequence[str] = (),
        template: str | None = None,
    ) -> list[str]:
        """Checks whether the cluster would take this configuration, and returns its warnings.

        The arguments are those of `create_experiment`. Nothing is created or uploaded.

        Raises:
            detcloud.shared.http.ApiError: it would refuse; the details have each problem.
        """
        body = {
            "config": read_config_text(config),
            "template": template,
            "overrides": list(overrides),
            "validate_only": True,
        }
        warnings: list[str] = self.post("/experiments", body)["warnings"]
        return warnings

    def upload_model_code(
        self,
        model_dir: str | Path | None,
        *,
        includes: Sequence[str | Path] = (),
        on_progress: OnProgress | None = None,
    ) -> str:
        """Packs a folder, sends it if the cluster lacks it, and returns its SHA-256.

        Raises:
            detcloud.shared.archive.ArchiveInvalid: the folder is too large or holds what
                cannot be sent.
        """
        # Imported here, as the downloads are: few commands and scripts pack or unpack files, and
        # what that takes doubles the import of this package.
        from detcloud.client.upload import pack_model_code, upload_archive

        with pack_model_code(model_dir, includes) as archive:
            request = {"sha256": archive.sha256, "size": archive.size}
            answer = self.post("/model-code", request)
            if not answer["needed"]:
                return archive.sha256
            try:
                upload_archive(self.http, archive, answer["upload"], on_progress)
            except ApiError as error:
                # Stores refuse to replace an object: that of an upload whose answer was lost.
                if error.status not in REPLACING or self.post("/model-code", request)["needed"]:
                    raise
            return archive.sha256

    def experiments(
        self,
        *,
        limit: int | None = None,
        sort_by: str = "id",
        order_by: str = "desc",
        on_left_out: Callable[[str], None] | None = None,
        **filters: Unpack[ExperimentFilters],
    ) -> Iterator[Experiment]:
        """The experiments, newest first; pages are fetched as they are needed.

        Args:
            sort_by: `id`, `name`, `state`, `user`, `progress`, `metric`, `cost` or `submitted`.
            order_by: `asc` or `desc`; what has no value is last in both.
            on_left_out: gets a sentence where an order leaves out old experiments; else it is a
                warning.
            filters: see `ExperimentFilters`.
        """
        return read_experiments(self, filters, sort_by, order_by, limit, on_left_out)

    def workspaces(self, on_left_out: Callable[[str], None] | None = None) -> list[Workspace]:
        """The workspaces that experiments are in; `on_left_out` as for `experiments`."""
        answer = self.get("/workspaces")
        report_omitted(answer, on_left_out)
        found: list[Workspace] = answer["items"]
        return found

    def projects(
        self, workspace: str | None = None, on_left_out: Callable[[str], None] | None = None
    ) -> list[Project]:
        """The projects of all workspaces, or of one; `on_left_out` as for `experiments`."""
        answer = self.get("/projects", workspace=workspace)
        report_omitted(answer, on_left_out)
        found: list[Project] = answer["items"]
        return found

    def experiment(self, experiment_id: int) -> Experiment:
        """The experiment with this id."""
        return Experiment(self, self.get(f"/experiments/{path_segment(experiment_id)}"))

    def trial(self, trial_id: int) -> Trial:
        """The trial with this id."""
        return Trial(self, self.get(f"/trials/{path_segment(trial_id)}"))

    def checkpoint(self, uuid_prefix: str) -> Checkpoint:
        """The checkpoint whose UUID begins with `uuid_prefix`, which must fit one only."""
        return Checkpoint(self, self.get(f"/checkpoints/{path_segment(uuid_prefix)}"))

    def agents(self) -> list[Agent]:
        """The agents, lost ones included."""
        return [Agent(self, item) for item in self.items("/agents")]

    def agent(self, agent_id: str) -> Agent:
        """The agent with this id or, where that is unique, this name."""
        agents = self.agents()
        for key in ("id", "name"):
            matches = [agent for agent in agents if agent.data[key] == agent_id]
            if len(matches) == 1:
                return matches[0]
        known = ", ".join(sorted(agent.id for agent in agents)) or "none"
        raise DetcloudError(f"there is no agent {agent_id}; there is {known}")

    def jobs(
        self,
        resource_pool: str | None = None,
        *,
        reverse: bool = False,
        limit: int | None = None,
    ) -> Iterator[Job]:
        """The queue of a pool in its order, by default that of the default compute pool."""
        order = "true" if reverse else None
        items = self.items("/jobs", limit, resource_pool=resource_pool, reverse=order)
        return (Job(self, item) for item in items)

    def job(self, job_id: str | int) -> Job:
        """The job with this UUID, any unique beginning of one, or this experiment's id."""
        return Job(self, self.get(job_path(str(job_id))))

    def update_jobs(self, changes: Sequence[JobChange]) -> list[Job]:
        """Carries out changes in order and returns the job of each.

        Raises:
            detcloud.shared.http.ApiError: some failed; the others were carried out.
        """
        answer = self.patch("/jobs", {"operations": list(changes)})
        return [Job(self, item) for item in answer["items"]]

    def cost(
        self, by: str = "experiment", since: str | None = None, until: str | None = None
    ) -> CostReport:
        """Costs from the beginning of day `since` to the end of `until`, such as `2026-11-30`, with
        a line for each experiment, trial, user, pool or day.

        Days are UTC; by default they are those from the month's first to now.
        """
        report: CostReport = self.get("/cost", by=by, since=since, until=until)
        return report

    def resource_pools(self) -> list[ResourcePool]:
        """Every pool."""
        return [ResourcePool(self, item) for item in self.items("/resource-pools")]

    def resource_pool(self, name: str) -> ResourcePool:
        """The pool of this name."""
        return ResourcePool(self, self.get(pool_path(name)))

    def set_resource_pool(
        self,
        name: str,
        config: str | Path | Mapping[str, Any] | None = None,
        *,
        overrides: Sequence[str] = (),
    ) -> ResourcePool:
        """Creates or changes a pool.

        Args:
            config: its fields, as the cluster configuration file has them: the path of a YAML
                file or a mapping. None: those that it has.
            overrides: `a.b=value` on top of them, the values being YAML.
        """
        text = None if config is None else read_config_text(config)
        body = {"config": text, "overrides": list(overrides)}
        return ResourcePool(self, self.put(pool_path(name), body))

    def configure(
        self, config: str | Path | Mapping[str, Any], *, dry_run: bool = False
    ) -> AppliedConfiguration:
        """Makes the pools what a cluster configuration file, or a mapping like it, says.

        With `dry_run` only answers what would change.
        """
        body = {"config": read_config_text(config), "dry_run": dry_run}
        applied: AppliedConfiguration = self.put("/cluster/configuration", body)
        return applied

    def templates(self) -> list[Template]:
        """Every template."""
        return [Template(self, item) for item in self.items("/templates")]

    def template(self, name: str) -> Template:
        """The template of this name."""
        return Template(self, self.get(template_path(name)))

    def set_template(self, name: str, config: str) -> Template:
        """Creates or replaces a template with a YAML text."""
        return Template(self, self.put(template_path(name), {"config": config}))

    def models(
        self,
        *,
        name: str | None = None,
        workspaces: Sequence[str] = (),
        label: str | None = None,
        user: str | None = None,
        archived: bool | None = False,
        sort_by: str = "name",
        descending: bool = False,
    ) -> list[Model]:
        """The models of the registry.

        Args:
            name: a part of the name.
            archived: None for archived ones too, True for those only.
            sort_by: `name`, `description`, `creation_time` or `last_updated_time`.
        """
        items = self.items(
            "/models",
            name=name,
            workspace=workspaces_text(workspaces),
            label=label,
            user=user,
            archived={None: "all", True: "true", False: None}[archived],
        )
        models = (Model(self, item) for item in items)
        return sort_models(models, sort_by, descending=descending)

    def model(self, name: str) -> Model:
        """The model of this name."""
        return Model(self, self.get(model_path(name)))

    def create_model(self, name: str, **fields: Any) -> Model:
        """Makes a model without versions.

        `fields` are any of `description`, `notes`, `labels`, `metadata` and `workspace`.
        """
        return Model(self, self.post("/models", {"name": name, **fields}))

    def tokens(self) -> list[Token]:
        """The tokens of all users for an admin, one's own for others."""
        return [Token(self, item) for item in self.items("/tokens")]

    def create_token(
        self,
        user: str | None = None,
        *,
        role: str | None = None,
        resource_pool: str | None = None,
        description: str | None = None,
        expires_days: int | None = None,
    ) -> Token:
        """Makes a token, one's own by default; its secret is answered this once.

        One of the role `join` lets agents into the `resource_pool`, and is good for nothing else.
        """
        fields = {
            "user": user,
            "role": role,
            "resource_pool": resource_pool,
            "description": description,
            "expires_days": expires_days,
        }
        body = {name: value for name, value in fields.items() if value is not None}
        return Token(self, self.post("/tokens", body))

    def whoami(self) -> Identity:
        """The user and the role of the token."""
        identity: Identity = self.get("/whoami")
        return identity

    def sign_in_link(self, page: str | None = None) -> str:
        """An address of the web page, or of the copy of it at `page`, that signs a browser in as
        the token's user: once, within five minutes.
        """
        path: str = self.post("/sign-in-codes")["path"]
        return self.url + path if page is None else page.partition("#")[0] + path[path.index("#") :]

    def overview(self) -> Overview:
        """The cluster's version and its resource pools."""
        overview: Overview = self.get("/cluster")
        return overview

    def get(self, path: str, **query: object) -> Any:
        """A GET below the API's base path; queries that are None are left out, lists repeat."""
        return self.http.request("GET", f"{API}{path}{query_text(query)}")

    def items(
        self,
        path: str,
        limit: int | None = None,
        *,
        page_items: int = PAGE_ITEMS_MAX,
        **query: object,
    ) -> Iterator[dict[str, Any]]:
        """Every item of a list, or the first `limit`, over as many pages as that takes."""
        cursor: str | None = None
        while limit is None or limit > 0:
            size = page_items if limit is None else min(limit, page_items)
            page = self.get(path, **query, limit=size, cursor=cursor)
            yield from page["items"]
            cursor = page["next_cursor"]
            if cursor is None:
                return
            limit = None if limit is None else limit - len(page["items"])

    def records(
        self, path: str, kind: type[Record], *, page_items: int = PAGE_ITEMS_MAX, **query: object
    ) -> Iterator[Record]:
        """Every item of a list as the typed dictionary `kind`, which the API promises."""
        items: Iterator[Any] = self.items(path, None, page_items=page_items, **query)
        return items

    def post(self, path: str, body: object = None, key: str | None = None) -> Any:
        """A POST under a fresh idempotency key, so that retries of it happen once.

        With `key` it happens once even if another process asks for the same under that key.
        """
        return self._mutate("POST", path, {} if body is None else body, key)

    def patch(self, path: str, body: object) -> Any:
        """A PATCH under a fresh idempotency key."""
        return self._mutate("PATCH", path, body)

    def put(self, path: str, body: object) -> Any:
        """A PUT under a fresh idempotency key."""
        return self._mutate("PUT", path, body)

    def delete(self, path: str, **query: object) -> Any:
        """A DELETE under a fresh idempotency key; queries as in `get`."""
        return self._mutate("DELETE", f"{path}{query_text(query)}", None)

    def close(self) -> None:
        """Closes the kept connection; the next request opens one again."""
        self.http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _mutate(self, method: str, path: str, body: object, key: str | None = None) -> Any:
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        return self.http.request(method, f"{API}{path}", body, headers)


class NoCluster(DetcloudError):
    """No cluster is configured and none runs here."""
