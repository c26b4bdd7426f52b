"""The runner of a search method outside the cluster: events in, operations out, no post twice.

In each round the runner waits for events and passes them to the method. It saves the method's state
with the operations, and posts the operations with the acknowledgement. If the process ends in
between, the next process posts the saved operations. The cluster accepts each numbered post once.
The runner waits during outages of the cluster.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from detcloud.client import Client, NoCluster
from detcloud.client.config_text import read_config_text
from detcloud.searcher.dispatch import handle_event
from detcloud.searcher.folder import RunnerRecord, StateFolder
from detcloud.searcher.method import SearcherState, SearchMethod
from detcloud.searcher.operations import Operation, Progress, read_operation
from detcloud.shared.errors import DetcloudError
from detcloud.shared.http import ApiError, Unreachable, backoff_seconds
from detcloud.shared.parameter_names import accept_names

log = logging.getLogger("detcloud.searcher")

WAIT_SECONDS = 20
# The minimum time between two calls that return no event.
PAUSE_SECONDS = 1.0
# The cluster's limit for one post.
OPERATIONS_MAX = 12
# Error codes of a cluster that judged the content of a request. A cluster that does not accept
# the caller, or a proxy, has not judged the content.
_JUDGED = frozenset({"invalid", "not_found", "too_large", "conflict"})

Answer = TypeVar("Answer")
Page = dict[str, Any]


class SearchRunner:
    """Runs the search of an experiment. Use `LocalSearchRunner`.

    Args:
        search_method: a new method. A saved state is loaded into it.
        folder: the folder of the state.
        connect: creates a client. Called again after an outage, since the cluster's address may
            change.
        sleep: waits for a number of seconds.
    """

    def __init__(
        self,
        search_method: SearchMethod,
        folder: StateFolder,
        connect: Callable[[], Client] = Client,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.search_method = search_method
        self.state = SearcherState()
        self._folder = folder
        self._connect = connect
        self._sleep = sleep
        self._client: Client | None = None
        self._progress = 0.0
        self._unsaved_record: RunnerRecord | None = None

    def run_experiment(self, record: RunnerRecord) -> int:
        """Run the search from `record` to the end of the experiment, and return the experiment's
        id.

        The state is saved before operations are sent. Requests are repeated while the cluster is
        unreachable. Raises DetcloudError for an invalid operation, if the cluster refuses an
        operation, or if another process runs the same search. Raises every exception of the method.
        """
        record = self._repeat_unaccepted_posts(record)
        while True:
            page = self._get_events(record, WAIT_SECONDS)
            if not page["active"]:
                return self._finish_search(record, page["state"])
            if not page["events"]:
                continue
            operations = list(self._handle_events(page["events"]))
            acknowledged = page["events"][-1]["id"]
            fields = [operation.fields() for operation in operations]
            record = replace(record, acknowledged=acknowledged, operations=fields)
            self._save_record(record, operations)
            record = self._post_operations(record)

    def save_state(self, experiment_id: int, operations: list[Operation]) -> None:
        """Save the newest record, the search's state and the method before operations are sent.

        Save nothing if no new record exists. Override this to save more, and call the original
        before or after your own code.

        Args:
            experiment_id: the id of the experiment.
            operations: the operations that the runner sends next.
        """
        if self._unsaved_record is not None:
            self._folder.save_state(self._unsaved_record, self.state, self.search_method)
            self._unsaved_record = None

    def load_state(self, experiment_id: int) -> tuple[int, list[Operation]]:
        """Load the latest state into the runner and the method.

        Return `experiment_id` and the operations that may be unsent. The runner sends these
        operations itself. Without a saved state, load nothing and return no operations.

        Args:
            experiment_id: the id of the experiment.

        Raises:
            DetcloudError: a file cannot be read.
        """
        record = self._folder.load_state(self.state, self.search_method)
        return experiment_id, [
            read_operation(operation) for operation in record.operations
        ] if record else []

    def _save_record(self, record: RunnerRecord, operations: list[Operation]) -> None:
        """Save `record`, the search's state and the method through `save_state`.

        If an overriding `save_state` does not call the original, save these three afterwards.
        """
        self._unsaved_record = record
        self.save_state(record.experiment_id, operations)
        SearchRunner.save_state(self, record.experiment_id, operations)

    def _repeat_unaccepted_posts(self, record: RunnerRecord) -> RunnerRecord:
        """Post the operations that an earlier process has not posted, and return the new record.

        The new record is not saved. A record that answers no event is returned unchanged. A record
        without operations still needs a post, which acknowledges the events. The last accepted post
        is repeated: the cluster refuses a different post with that number, which shows that another
        process has posted.

        Raises DetcloudError if the cluster's number of posts does not fit the record, and as
        `_post_operations` does.
        """
        posts = len(_split_into_posts(record.operations)) if record.acknowledged else 0
        accepted: int = self._get_events(record, 0)["post"] - record.post
        if not 0 <= accepted <= posts:
            raise DetcloudError(
                f"experiment {record.experiment_id} has taken {record.post + accepted} posts, and "
                f"{self._folder.path} knows of {record.post} to {record.post + posts}: another "
                "process drives this search, or the folder is an old copy"
            )
        if not posts:
            return record
        return self._post_operations(_record_after_posts(record, max(0, accepted - 1)))

    def _post_operations(self, record: RunnerRecord) -> RunnerRecord:
        """Post all operations of `record`, and return the record after the posts.

        The last post acknowledges the events. If the experiment has ended, discard the remaining
        posts, which then count as posted. Raises DetcloudError if the cluster refuses a post. If
        the cluster refuses the first post as invalid, first discard the newest saved state, so that
        the method answers the events again in a later run.
        """
        path = f"/experiments/{record.experiment_id}/searcher-operations"
        portions = _split_into_posts(record.operations)
        for number, portion in enumerate(portions):
            is_last = number == len(portions) - 1
            body = {
                "post": record.post + 1 + number,
                # The cluster keeps the newest acknowledgement, so 0 changes nothing.
                "acknowledged": record.acknowledged if is_last else 0,
                "operations": portion,
            }
            try:
                self._call_cluster(partial(Client.post, path=path, body=body))
            except ApiError as error:
                if error.code == "conflict" and not self._get_events(record, 0)["active"]:
                    # The experiment has ended in the meantime and accepts no posts.
                    break
                raise self._refusal_error(error, first=number == 0) from None
        return _record_after_posts(record, len(portions))

    def _refusal_error(self, error: ApiError, *, first: bool) -> DetcloudError:
        """Return the error for a refused post.

        If the first post was invalid, also discard the newest state, so that the method answers
        again. Discard nothing if no older state is saved.
        """
        if first and error.code == "invalid" and self._folder.discard_newest_state():
            return DetcloudError(
                f"{error}\nno operation was sent; correct the search method and run it "
                "again: it resumes before these events"
            )
        return DetcloudError(str(error))

    def _get_events(self, record: RunnerRecord, wait_seconds: int) -> Page:
        """Return the cluster's page of events after `record.acknowledged`.

        The cluster waits at most `wait_seconds` for an event. If a running experiment has no event
        after a wait, sleep until PAUSE_SECONDS have passed since the call. Repeat the call while
        the cluster is unreachable. Raises ApiError if the cluster refuses the call.
        """
        path = f"/experiments/{record.experiment_id}/searcher-events"
        began = time.monotonic()
        page: Page = self._call_cluster(
            lambda client: client.get(path, after=record.acknowledged, wait_seconds=wait_seconds)
        )
        if wait_seconds and page["active"] and not page["events"]:
            self._sleep(max(0.0, PAUSE_SECONDS - (time.monotonic() - began)))
        return page

    def _handle_events(self, events: Sequence[Mapping[str, Any]]) -> Iterator[Operation]:
        """Yield the method's operations for each event, and then the method's progress if changed.

        Each event is recorded in the search's state before the method answers. Events and
        operations are logged. Without a created trial, no progress is yielded.
        """
        for event in events:
            log.info("%s", _event_text(event))
            for operation in handle_event(self.search_method, self.state, event):
                log.info("-> %s", operation)
                yield operation
        if not self.state.trials_created:
            # Methods compute their progress from the trials, and may fail without a trial.
            return
        progress = Progress(self.search_method.progress(self.state))
        share = progress.fields()["progress"]
        if share != self._progress:
            self._progress = share
            yield progress

    def _finish_search(self, record: RunnerRecord, state: str) -> int:
        """Wait until the trials have stopped, and return the experiment's id.

        Also set `experiment_completed` and `experiment_failed` in the search's state.
        """
        while state.startswith("STOPPING"):
            self._sleep(PAUSE_SECONDS)
            state = self._get_events(record, 0)["state"]
        log.info("experiment %d is %s", record.experiment_id, state)
        self.state.experiment_completed = state == "COMPLETED"
        self.state.experiment_failed = state == "ERROR"
        return record.experiment_id

    def _call_cluster(self, ask: Callable[[Client], Answer]) -> Answer:
        """Return the result of `ask`, and repeat the call while the cluster is unreachable.

        Status 429 and 5xx count as unreachable. Each repetition uses a new client, after a pause.
        The first failure is logged. Raises ApiError if the cluster refuses the call.
        """
        failures = 0
        while True:
            try:
                if self._client is None:
                    self._client = self._connect()
                return ask(self._client)
            except (ApiError, Unreachable, NoCluster) as error:
                if isinstance(error, ApiError) and not error.is_transient:
                    raise
                if not failures:
                    log.warning("%s; retrying until the cluster is back", error)
                self._client = None
                failures += 1
            self._sleep(backoff_seconds(failures))


class LocalSearchRunner(SearchRunner):
    """A runner in this process that saves the search's state in a folder.

    A process that was killed continues when it is started again with the same folder. A new search
    needs a new folder.

    Args:
        search_method: the method.
        searcher_dir: the folder; the working directory by default.
        client: a client of the cluster; by default as the commands connect.

    Raises:
        DetcloudError: the folder cannot be used.
    """

    def __init__(
        self,
        search_method: SearchMethod,
        searcher_dir: str | Path | None = None,
        client: Client | None = None,
    ) -> None:
        connect = Client if client is None else lambda: client
        self.searcher_dir = Path(searcher_dir or Path.cwd())
        super().__init__(search_method, StateFolder(self.searcher_dir), connect)

    @accept_names(context_dir="model_dir")
    def run(
        self,
        exp_config: str | Path | Mapping[str, Any],
        model_dir: str | Path | None = None,
        includes: Sequence[str | Path] = (),
    ) -> int:
        """Create the experiment unless this folder has an experiment, and run the search to the
        end.

        Return the experiment's id. If the folder has an experiment, the arguments are ignored. The
        state is saved before operations are sent, and requests are repeated while the cluster is
        unreachable. Exceptions of the method are raised unchanged.

        Args:
            exp_config: the path of a YAML file or a mapping; its searcher must be `custom`.
            model_dir: the code of the trials; the working directory by default.
            includes: additional files and folders to upload with the code.

        Raises:
            NoCluster: no cluster is known.
            DetcloudError: the configuration or an operation is invalid or refused, the folder is in
                use or belongs to another cluster, or another process runs the same search.
        """
        with self._folder.lock():
            record = self._load_record()
            if record is None:
                record = self._start_search(
                    self._create_experiment(exp_config, model_dir or Path.cwd(), includes)
                )
            return self._continue_search(record)

    def attach(self, experiment_id: int) -> int:
        """Run the search of an existing experiment to the end, and return the experiment's id.

        `detcloud create` or `Client.create_experiment` has created the experiment, and no other
        folder may have run its search. Exceptions of the method are raised unchanged.

        Args:
            experiment_id: the id of the experiment.

        Raises:
            NoCluster: no cluster is known.
            DetcloudError: the folder contains another experiment's search, is in use or belongs to
                another cluster; or an operation is invalid or refused.
        """
        with self._folder.lock():
            record = self._load_record()
            if record is None:
                self._client = self._connect()
                record = self._start_search(experiment_id)
            if record.experiment_id != experiment_id:
                raise DetcloudError(
                    f"{self._folder.path} is the search of experiment {record.experiment_id}, not "
                    f"{experiment_id}; each search needs a folder of its own"
                )
            return self._continue_search(record)

    def _create_experiment(
        self,
        exp_config: str | Path | Mapping[str, Any],
        model_dir: str | Path,
        includes: Sequence[str | Path],
    ) -> int:
        """Create the experiment and return the id.

        If an earlier process has stored a request in the folder, repeat this request and ignore the
        arguments. Otherwise upload the code, validate the configuration and store the request
        first.

        Raises DetcloudError if the searcher is not `custom`, and ApiError if the cluster refuses
        the request. The stored request is deleted if the cluster refused the content. After any
        other refusal the request stays.
        """
        client = self._client = self._connect()
        request = self._folder.read_request()
        if request is None:
            code = client.upload_model_code(model_dir, includes=includes)
            body = {"config": read_config_text(exp_config), "model_code": code}
            searcher = client.post("/experiments", {**body, "validate_only": True})["searcher"]
            if searcher != "custom":
                raise DetcloudError(
                    f"the configuration's searcher is {searcher}; expected custom, which "
                    "is driven by your own search method"
                )
            request = {"key": uuid.uuid4().hex, "body": body}
            self._folder.write_request(request)
        path, body, key = "/experiments", request["body"], request["key"]
        try:
            created = self._call_cluster(lambda client: client.post(path, body, key))
        except ApiError as error:
            # A request whose content was refused has created nothing, so the next request may
            # differ. After any other refusal, an earlier attempt may have created the experiment.
            if error.code in _JUDGED:
                self._folder.delete_request()
            raise
        return int(created["id"])

    def _load_record(self) -> RunnerRecord | None:
        """Load the newest saved state, and return the record. Return None for a new folder."""
        record = self._folder.read_record()
        if record is not None:
            self.load_state(record.experiment_id)
        return record

    def _get_state_path(self, experiment_id: int) -> Path:
        """Return a folder for the files of a derived runner, and create a missing folder.

        Determined stored its state there.
        """
        path = self.searcher_dir / f"exp_{experiment_id}"
        path.mkdir(exist_ok=True)
        return path

    def _start_search(self, experiment_id: int) -> RunnerRecord:
        """Set the id in the search's state, save the first record, and return the record.

        The state and the method are saved too. The record has no operations: the cluster's first
        event asks for the initial operations. Raises DetcloudError, and saves nothing, if
        operations were posted for the experiment before.
        """
        self.state.experiment_id = experiment_id
        record = RunnerRecord(experiment_id, self._cluster_id())
        if self._get_events(record, 0)["post"]:
            raise DetcloudError(
                f"experiment {experiment_id} is already driven by a search method; resume "
                "with the folder of that search"
            )
        self._save_record(record, [])
        log.info("experiment %d begins; its search is kept in %s", experiment_id, self._folder.path)
        return record

    def _continue_search(self, record: RunnerRecord) -> int:
        """Run the search to the end of the experiment, and return the experiment's id.

        Raises DetcloudError for another cluster's record, and as `run_experiment` does.
        """
        if self._cluster_id() != record.cluster_id:
            raise DetcloudError(
                f"{self._folder.path} is a search of another cluster ({record.cluster_id}); "
                "connect to that cluster, or use a new folder"
            )
        return self.run_experiment(record)

    def _cluster_id(self) -> str:
        return str(self._call_cluster(lambda client: client.overview())["cluster_id"])


def _record_after_posts(record: RunnerRecord, posts: int) -> RunnerRecord:
    """Return the record after the cluster has accepted the first `posts` posts of `record`.

    `post` rises by `posts`, and `operations` no longer contains the operations of these posts.
    `acknowledged` stays.
    """
    left = record.operations[posts * OPERATIONS_MAX :]
    return replace(record, post=record.post + posts, operations=left)


def _split_into_posts(operations: Sequence[dict[str, Any]]) -> list[Sequence[dict[str, Any]]]:
    """Return the operations of each post. Without operations, return an empty post to acknowledge
    events.
    """
    starts = range(0, max(1, len(operations)), OPERATIONS_MAX)
    return [operations[start : start + OPERATIONS_MAX] for start in starts]


def _event_text(event: Mapping[str, Any]) -> str:
    """Return the event as a line of the log: `validation_completed 964e0bf1 length=5
    metric=0.9639`.
    """
    parts = [event["type"], event.get("request_id", "")[:8]]
    parts += [
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in event.items()
        if name not in ("id", "type", "request_id")
    ]
    return " ".join(filter(None, parts))
