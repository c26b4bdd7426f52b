"""The client of a cluster's HTTP API (docs/api.md): a method for each kind of object."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from detcloud.client import handles
from detcloud.client.administration import Administration
from detcloud.client.agent import Agent
from detcloud.client.config_text import read_config_text
from detcloud.client.experiment_list import (
    ExperimentFilters,
    Project,
    Workspace,
    read_experiments,
    report_omitted,
)
from detcloud.client.experiment_view import ExperimentView, ViewContent, find_view, save_view
from detcloud.client.handles import Checkpoint, Experiment, Trial
from detcloud.client.job import Job, JobChange, job_path
from detcloud.client.model import Model, model_path, sort_models, workspaces_text
from detcloud.client.records import CostReport, UsageReport
from detcloud.client.report import Report, report_path
from detcloud.client.schedule import Schedule, schedule_path
from detcloud.client.template import Template, template_path
from detcloud.shared.errors import DetcloudError

OnProgress = Callable[[int, int], None]


class Client(Administration):
    """A connection to a cluster, with a token. Threads may share a client.

    A `with` block closes the client at its end. `url` is the address without a slash at the end.
    """

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
        """Upload the model code if the cluster lacks the archive, and submit an experiment.

        Args:
            config: the path of a YAML file, or the configuration as a mapping of plain values.
            model_dir: the folder with the code, or one file. Patterns in the folder's `.detignore`
                exclude files. None if the entrypoint needs no code.
            overrides: changes of the configuration as `a.b=value`, with values in YAML.
            template: the name of a template that supplies missing settings.
            paused: create the experiment in state PAUSED.
            test_mode: instead of the search, run a trial of one batch, validation and checkpoint.
            includes: further files and folders, copied next to the code under their last names.
            on_progress: called during an upload with the bytes sent and the total bytes.

        Raises:
            DetcloudError: the files cannot be read or packed, or the mapping is no plain JSON.
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

    def create_schedule(
        self,
        config: str | Path | Mapping[str, Any],
        model_dir: str | Path | None = None,
        *,
        overrides: Sequence[str] = (),
        template: str | None = None,
        paused: bool = False,
        includes: Sequence[str | Path] = (),
        on_progress: OnProgress | None = None,
    ) -> Schedule:
        """Upload the model code, and create a schedule from the section `schedule` of `config`.

        The cluster submits an experiment with this code at each time of the schedule.

        Args:
            config: the path of a YAML file, or the configuration as a mapping of plain values.
            model_dir: the folder with the code, or one file, as in `create_experiment`.
            overrides: changes of the configuration as `a.b=value`, with values in YAML.
            template: the name of a template, which each submission reads again.
            paused: create the schedule paused.
            includes: further files and folders, copied next to the code under their last names.
            on_progress: called during an upload with the bytes sent and the total bytes.

        Raises:
            DetcloudError: the files cannot be read or packed, or the mapping is no plain JSON.
        """
        body = {
            "config": read_config_text(config),
            "template": template,
            "overrides": list(overrides),
            "model_code": self.upload_model_code(
                model_dir, includes=includes, on_progress=on_progress
            ),
            "paused": paused,
        }
        return Schedule(self, self.post("/schedules", body))

    def schedules(self) -> list[Schedule]:
        """Return the schedules of all users, newest first."""
        return [Schedule(self, item) for item in self.items("/schedules")]

    def schedule(self, id: int) -> Schedule:
        """Return the schedule with this id, with the submitted configuration in `data`."""
        return Schedule(self, self.get(schedule_path(id)))

    def check_experiment(
        self,
        config: str | Path | Mapping[str, Any],
        *,
        overrides: Sequence[str] = (),
        template: str | None = None,
    ) -> list[str]:
        """Check a configuration without creating anything, and return the cluster's warnings.

        Args:
            config: the path of a YAML file, or the configuration as a mapping of plain values.
            overrides: changes of the configuration as `a.b=value`, with values in YAML.
            template: the name of a template that supplies missing settings.

        Raises:
            detcloud.shared.http.ApiError: the configuration is refused; `details` has each problem.
            DetcloudError: the file cannot be read, or the mapping is no plain JSON.
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
        """Pack and upload a folder or a file, and return the SHA-256 of the archive in hexadecimal.

        The upload is skipped if the cluster has the archive. Without `model_dir` and `includes` the
        archive is empty.

        Args:
            model_dir: the folder with the code, or one file. Patterns in the folder's `.detignore`
                exclude files.
            includes: further files and folders, copied next to the code under their last names.
            on_progress: called during an upload with the bytes sent and the total bytes.

        Raises:
            detcloud.shared.archive.ArchiveInvalid: the files are too large, or one cannot be sent.
            DetcloudError: a file does not exist or cannot be read, or two includes have one name.
        """
        # Few commands and scripts pack files, and this import would double the time to import the
        # package. The downloads are imported late for the same reason.
        from detcloud.client.upload import send_model_code

        return send_model_code(self, model_dir, includes, on_progress)

    def experiments(
        self,
        *,
        limit: int | None = None,
        sort_by: str = "id",
        order_by: str = "desc",
        on_left_out: Callable[[str], None] | None = None,
        columns: Sequence[str] = (),
        **filters: Unpack[ExperimentFilters],
    ) -> Iterator[Experiment]:
        """Yield experiments, by default the newest first. Pages are fetched during the iteration.

        Args:
            limit: the most experiments to yield; None for all.
            sort_by: `id`, `name`, `state`, `user`, `progress`, `metric`, `cost` or `submitted`, or
                a column as in `columns`.
            order_by: `asc` or `desc`. Experiments without a value come last in both.
            on_left_out: called once with a sentence if the cluster has more experiments than it
                searches in a request, and leaves out the oldest. None: a Python warning.
            columns: metrics and hyperparameters as `metric:NAME` or `hparam:PATH`. Their values
                are in `data["values"]` of each experiment.
            filters: see `ExperimentFilters`.
        """
        return read_experiments(self, filters, sort_by, order_by, limit, on_left_out, columns)

    def experiment_views(self, workspace: str | None = None) -> list[ExperimentView]:
        """Return the caller's saved views and the views for other users, by owner and name.

        `workspace` selects the views of this workspace.
        """
        items = self.items("/experiment-views", workspace=workspace)
        return [ExperimentView(self, item) for item in items]

    def experiment_view(self, name: str) -> ExperimentView:
        """Return the saved view with this name, or of this `USER/NAME`.

        Raises:
            DetcloudError: no view has the name, or views of several other users have it.
        """
        return find_view(self, name)

    def save_experiment_view(self, name: str, **content: Unpack[ViewContent]) -> ExperimentView:
        """Save a view of the caller, or replace the caller's view with this name.

        Args:
            name: the name, unique among the views of the caller.
            content: see `ViewContent`.
        """
        return save_view(self, name, content)

    def workspaces(self, on_left_out: Callable[[str], None] | None = None) -> list[Workspace]:
        """Return the workspaces that have experiments. [] without experiments.

        The cluster counts only the newest 20,000 experiments.

        Args:
            on_left_out: called with a sentence if older experiments are left out. None: a Python
                warning.
        """
        answer = self.get("/workspaces")
        report_omitted(answer, on_left_out)
        workspaces: list[Workspace] = answer["items"]
        return workspaces

    def projects(
        self, workspace: str | None = None, on_left_out: Callable[[str], None] | None = None
    ) -> list[Project]:
        """Return the projects that have experiments. [] for an unknown workspace.

        The cluster counts only the newest 20,000 experiments.

        Args:
            workspace: the name of the workspace; None for all workspaces.
            on_left_out: called with a sentence if older experiments are left out. None: a Python
                warning.
        """
        answer = self.get("/projects", workspace=workspace)
        report_omitted(answer, on_left_out)
        projects: list[Project] = answer["items"]
        return projects

    def experiment(self, experiment_id: int) -> Experiment:
        """Return the experiment with this id."""
        return handles.read_experiment(self, experiment_id)

    def trial(self, trial_id: int) -> Trial:
        """Return the trial with this id."""
        return handles.read_trial(self, trial_id)

    def checkpoint(self, uuid_prefix: str) -> Checkpoint:
        """Return the checkpoint with a UUID.

        Args:
            uuid_prefix: the UUID, or a beginning of the UUID that only one checkpoint has.
        """
        return handles.read_checkpoint(self, uuid_prefix)

    def agents(self) -> list[Agent]:
        """Return all agents. Lost agents are included until they are removed, after a day."""
        return [Agent(self, item) for item in self.items("/agents")]

    def agent(self, agent_id: str) -> Agent:
        """Return the agent with this id, or else the only agent with this name.

        Raises:
            DetcloudError: no agent has the id, and no agent or several have the name.
        """
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
        """Return the jobs of a pool's queue, in the order of the queue.

        Args:
            resource_pool: the name of the pool; None for the default compute pool.
            reverse: whether the last job comes first.
            limit: the most jobs to return; None for all.
        """
        order = "true" if reverse else None
        items = self.items("/jobs", limit, resource_pool=resource_pool, reverse=order)
        return (Job(self, item) for item in items)

    def job(self, job_id: str | int) -> Job:
        """Return a job.

        Args:
            job_id: the job's UUID, a unique prefix of the UUID, or the experiment's id.
        """
        return Job(self, self.get(job_path(str(job_id))))

    def update_jobs(self, changes: Sequence[JobChange]) -> list[Job]:
        """Try all changes in order, and return the changed job of each change.

        Raises:
            detcloud.shared.http.ApiError: a change failed, and the others took effect. If a change
                names another user's job, the code is `forbidden` and none took effect.
        """
        answer = self.patch("/jobs", {"operations": list(changes)})
        return [Job(self, item) for item in answer["items"]]

    def cost(
        self, by: str = "experiment", since: str | None = None, until: str | None = None
    ) -> CostReport:
        """Return the dollars of a period.

        Args:
            by: `experiment`, `trial`, `user`, `pool` or `day`: the report has an item for each.
            since: the first UTC day, such as `2026-11-01`; None for the begin of this month.
            until: the last UTC day; None for today.
        """
        report: CostReport = self.get("/cost", by=by, since=since, until=until)
        return report

    def usage(
        self, by: str = "experiment", since: str | None = None, until: str | None = None
    ) -> UsageReport:
        """Return the use of slots in a period.

        Args:
            by: `experiment`, `trial`, `user`, `project`, `workspace`, `pool`, `day` or `pool-day`:
                the report has an item for each.
            since: the first UTC day, such as `2026-11-01`; None for the begin of this month.
            until: the last UTC day; None for today.
        """
        report: UsageReport = self.get("/usage", by=by, since=since, until=until)
        return report

    def templates(self) -> list[Template]:
        """Return all templates."""
        return [Template(self, item) for item in self.items("/templates")]

    def template(self, name: str) -> Template:
        """Return the template with this name."""
        return Template(self, self.get(template_path(name)))

    def set_template(self, name: str, config: str) -> Template:
        """Create or replace a template, and return the template.

        Args:
            name: the name: 1 to 64 of the characters A-Za-z0-9._-
            config: the YAML text of a partial experiment configuration.
        """
        return Template(self, self.put(template_path(name), {"config": config}))

    def reports(self) -> list[Report]:
        """Return your reports and the shared reports of other users, newest first."""
        return [Report(self, item) for item in self.items("/reports")]

    def report(self, id: int) -> Report:
        """Return the report with this id."""
        return Report(self, self.get(report_path(id)))

    def create_report(self, title: str, text: str = "", *, sharing: str = "private") -> Report:
        """Create a report, and return the report.

        Args:
            title: the title: 1 to 200 printable characters.
            text: Markdown, with charts as docs/reports.md describes, at most 64 KiB.
            sharing: `private`; `read`, so that all users read the report; or `edit`, so that all
                users also change its title and text.
        """
        body = {"title": title, "text": text, "sharing": sharing}
        return Report(self, {**self.post("/reports", body), "text": text})

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
        """Return the registry's models that match all filters.

        Args:
            name: a part of the name; upper and lower case are equal.
            workspaces: names of workspaces, of which any may match; empty for all.
            label: a label of the model.
            user: the user who owns the model.
            archived: True for archived models, False for the others, None for both.
            sort_by: a key of `detcloud.client.model.SORT_FIELDS`, such as `creation_time`.
            descending: whether the largest value comes first.

        Raises:
            DetcloudError: `sort_by` is another word, or a workspace has a comma.
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
        """Return the model with this name."""
        return Model(self, self.get(model_path(name)))

    def create_model(self, name: str, **fields: Any) -> Model:
        """Create a model without versions, and return the model.

        Args:
            name: the name, which never changes.
            fields: any of `description`, `notes`, `labels`, `metadata` and `workspace`.

        Raises:
            detcloud.shared.http.ApiError: `conflict`, if the name exists.
        """
        return Model(self, self.post("/models", {"name": name, **fields}))
