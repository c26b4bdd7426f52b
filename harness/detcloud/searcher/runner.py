"""Runs a search method beside the cluster: events in, operations out, and nothing twice.

A round: wait for events, hand them to the method, save its state together with what it asks for,
post that with the acknowledgement. Whatever ends the process in between, the next one posts what
was saved; the cluster takes a post of a number once. Outages of the cluster are waited out.
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

from detcloud import DetcloudError
from detcloud.client import Client, NoCluster
from detcloud.client.client import config_text
from detcloud.http import ApiError, Unreachable, backoff_seconds
from detcloud.searcher.dispatch import answers
from detcloud.searcher.folder import Saved, StateFolder
from detcloud.searcher.method import SearcherState, SearchMethod
from detcloud.searcher.operations import Progress

log = logging.getLogger("detcloud.searcher")

WAIT_SECONDS = 20
# Between two calls that were answered at once without an event.
PAUSE_SECONDS = 1.0
# What the cluster takes in one post.
OPERATIONS_MAX = 12

Answer = TypeVar("Answer")
Page = dict[str, Any]


class SearchRunner:
    """Drives one experiment; `LocalSearchRunner` is what there is to use.

    Args:
        search_method: as its author made it; it is given its saved state where there is one.
        folder: where the state is kept.
        connect: makes a client; called again after an outage, since a cluster may come back
            under another address.
        sleep: waits so many seconds.
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

    def run_experiment(self, saved: Saved) -> int:
        """Goes on from `saved` to the end of the experiment; returns its id.

        Raises:
            DetcloudError: the cluster refused what the method asks for, or another process drives
                the same search. And whatever the method raises.
        """
        saved = self._resumed(saved)
        while True:
            page = self._events(saved, WAIT_SECONDS)
            if not page["active"]:
                return self._ended(saved, page["state"])
            if not page["events"]:
                continue
            operations = list(self._operations(page["events"]))
            acknowledged = page["events"][-1]["id"]
            saved = replace(saved, acknowledged=acknowledged, operations=operations)
            self._folder.save(saved, self.state, self.search_method)
            saved = self._post(saved)

    def _resumed(self, saved: Saved) -> Saved:
        """Posts what was not taken before the process ended. The last post that was is posted
        again: that it is the same shows that nobody else has posted meanwhile.
        """
        posts = len(_portions(saved.operations)) if saved.acknowledged else 0
        taken: int = self._events(saved, 0)["post"] - saved.post
        if not 0 <= taken <= posts:
            raise DetcloudError(
                f"experiment {saved.experiment_id} has taken {saved.post + taken} posts, and "
                f"{self._folder.path} knows of {saved.post} to {saved.post + posts}: another "
                "process drives this search, or the folder is an old copy"
            )
        return self._post(_without(saved, max(0, taken - 1))) if posts else saved

    def _post(self, saved: Saved) -> Saved:
        """Posts what is to be posted, the events acknowledged with the last of it."""
        path = f"/experiments/{saved.experiment_id}/searcher-operations"
        portions = _portions(saved.operations)
        for number, portion in enumerate(portions):
            is_last = number == len(portions) - 1
            body = {
                "post": saved.post + 1 + number,
                # What was acknowledged before does not matter: it never goes back.
                "acknowledged": saved.acknowledged if is_last else 0,
                "operations": portion,
            }
            try:
                self._reached(partial(Client.post, path=path, body=body))
            except ApiError as error:
                if error.code == "conflict" and not self._events(saved, 0)["active"]:
                    # It ended meanwhile, and takes nothing more.
                    break
                raise self._explained(error, first=number == 0) from None
        return _without(saved, len(portions))

    def _explained(self, error: ApiError, *, first: bool) -> DetcloudError:
        """A refusal. With nothing taken of what the method asked for, it may answer again."""
        if first and error.code == "invalid" and self._folder.forget_newest():
            return DetcloudError(
                f"{error}\nnothing of it was done; correct the search method and run it again: it "
                "goes on before these events"
            )
        return DetcloudError(str(error))

    def _events(self, saved: Saved, wait_seconds: int) -> Page:
        path = f"/experiments/{saved.experiment_id}/searcher-events"
        began = time.monotonic()
        page: Page = self._reached(
            lambda client: client.get(path, after=saved.acknowledged, wait_seconds=wait_seconds)
        )
        if wait_seconds and page["active"] and not page["events"]:
            self._sleep(max(0.0, PAUSE_SECONDS - (time.monotonic() - began)))
        return page

    def _operations(self, events: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        for event in events:
            log.info("%s", _told(event))
            for operation in answers(self.search_method, self.state, event):
                log.info("-> %s", operation)
                yield operation.fields()
        progress = Progress(self.search_method.progress(self.state)).fields()
        if progress["progress"] != self._progress:
            self._progress = progress["progress"]
            yield progress

    def _ended(self, saved: Saved, state: str) -> int:
        """Waits for the trials to stop, and keeps how the search ended."""
        while state.startswith("STOPPING"):
            self._sleep(PAUSE_SECONDS)
            state = self._events(saved, 0)["state"]
        log.info("experiment %d is %s", saved.experiment_id, state)
        self.state.experiment_completed = state == "COMPLETED"
        self.state.experiment_failed = state == "ERROR"
        return saved.experiment_id

    def _reached(self, ask: Callable[[Client], Answer]) -> Answer:
        """The answer, however long the cluster is away."""
        failures = 0
        while True:
            try:
                if self._client is None:
                    self._client = self._connect()
                return ask(self._client)
            except (ApiError, Unreachable, NoCluster) as error:
                if isinstance(error, ApiError) and not error.transient:
                    raise
                if not failures:
                    log.warning("%s; it is tried again until the cluster is back", error)
                self._client = None
                failures += 1
            self._sleep(backoff_seconds(failures))


class LocalSearchRunner(SearchRunner):
    """Runs a search method in this process, its state in a folder of its own.

    Killed at any point and run again with the same folder, it goes on where it was. The folder is
    the search: a new search needs a new one.

    Args:
        search_method: the method.
        searcher_dir: the folder; the working directory by default.
        client: a client of the cluster; by default as the commands find it.

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
        super().__init__(search_method, StateFolder(Path(searcher_dir or Path.cwd())), connect)

    def run(
        self,
        exp_config: str | Path | Mapping[str, Any],
        model_dir: str | Path | None = None,
        includes: Sequence[str | Path] = (),
    ) -> int:
        """Creates the experiment, once for the folder, and drives it to its end; returns its id.

        Args:
            exp_config: the path of a YAML file or a mapping; its searcher is `custom`.
            model_dir: the code of the trials; the working directory by default.
            includes: more files and folders to send beside it.

        Raises:
            NoCluster: there is no cluster to begin with.
            DetcloudError: as `run_experiment`, and whatever is wrong with the configuration.
        """
        with self._folder.locked():
            saved = self._folder.load(self.state, self.search_method)
            if saved is None:
                saved = self._begun(self._created(exp_config, model_dir or Path.cwd(), includes))
            return self._gone_on(saved)

    def attach(self, experiment_id: int) -> int:
        """Drives an experiment that `detcloud create` made, and that nobody has driven yet, to its
        end; returns its id. Raises as `run`.
        """
        with self._folder.locked():
            saved = self._folder.load(self.state, self.search_method)
            if saved is None:
                self._client = self._connect()
                saved = self._begun(experiment_id)
            if saved.experiment_id != experiment_id:
                raise DetcloudError(
                    f"{self._folder.path} is the search of experiment {saved.experiment_id}, not "
                    f"{experiment_id}; each search needs a folder of its own"
                )
            return self._gone_on(saved)

    def _created(
        self,
        exp_config: str | Path | Mapping[str, Any],
        model_dir: str | Path,
        includes: Sequence[str | Path],
    ) -> int:
        client = self._client = self._connect()
        request = self._folder.request()
        if request is None:
            code = client.upload_model_code(model_dir, includes=includes)
            body = {"config": config_text(exp_config), "model_code": code}
            found = client.post("/experiments", {**body, "validate_only": True})["searcher"]
            if found != "custom":
                raise DetcloudError(
                    f"the configuration's searcher is {found}; expected custom, the one that a "
                    "search method of yours drives"
                )
            request = {"key": uuid.uuid4().hex, "body": body}
            self._folder.keep_request(request)
        path, body, key = "/experiments", request["body"], request["key"]
        try:
            created = self._reached(lambda client: client.post(path, body, key))
        except ApiError:
            # Refused, so that nothing was made of it: the next one may ask for something else.
            self._folder.forget_request()
            raise
        return int(created["id"])

    def _begun(self, experiment_id: int) -> Saved:
        self.state.experiment_id = experiment_id
        saved = Saved(experiment_id, self._cluster_id())
        if self._events(saved, 0)["post"]:
            raise DetcloudError(
                f"experiment {experiment_id} is driven already; go on with the folder of its search"
            )
        self._folder.save(saved, self.state, self.search_method)
        log.info("experiment %d begins; its search is kept in %s", experiment_id, self._folder.path)
        return saved

    def _gone_on(self, saved: Saved) -> int:
        if self._cluster_id() != saved.cluster_id:
            raise DetcloudError(
                f"{self._folder.path} is a search of another cluster ({saved.cluster_id}); reach "
                "that one, or use a new folder"
            )
        return self.run_experiment(saved)

    def _cluster_id(self) -> str:
        return str(self._reached(lambda client: client.overview())["cluster_id"])


def _without(saved: Saved, posts: int) -> Saved:
    """What is left to be posted after so many posts more."""
    left = saved.operations[posts * OPERATIONS_MAX :]
    return replace(saved, post=saved.post + posts, operations=left)


def _portions(operations: Sequence[dict[str, Any]]) -> list[Sequence[dict[str, Any]]]:
    """What goes into a post each; one without operations acknowledges all the same."""
    starts = range(0, max(1, len(operations)), OPERATIONS_MAX)
    return [operations[start : start + OPERATIONS_MAX] for start in starts]


def _told(event: Mapping[str, Any]) -> str:
    """`validation_completed 964e0bf1 length=5 metric=0.9639`."""
    shown = [event["type"], event.get("request_id", "")[:8]]
    shown += [
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in event.items()
        if name not in ("id", "type", "request_id")
    ]
    return " ".join(filter(None, shown))
