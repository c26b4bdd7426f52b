"""Requests made up from the API's own description, sent to a cluster that has something to lose."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import positive_data_acceptance

from tests.integration.embedded_cluster import EmbeddedCluster, config, model_dir
from tests.patience import wait_until

# Of the integers that a path takes, most name nothing: these have a good chance to.
IDS = ("experiment_id", "trial_id")
IDS_KNOWN = 4
EXAMPLES = int(os.environ.get("REQUEST_EXAMPLES", "1"))


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The schema of a running cluster with an experiment that has ended and a paused one."""
    folder: Path = tmp_path_factory.mktemp("live")
    cluster = EmbeddedCluster(folder / "home")
    try:
        client = cluster.start()
        model = model_dir(folder / "model")
        done = client.create_experiment(config(trials=2), model)
        client.create_experiment(config(trials=2), model, paused=True)
        wait_until(lambda: client.experiment(done.id).has_ended)
        token = (cluster.home / "token").read_text().strip()
        yield schemathesis.openapi.from_url(
            f"{client.url}/api/v1/openapi.json", headers={"Authorization": f"Bearer {token}"}
        )
        assert client.experiment(done.id).id == done.id, "the cluster answers no more"
    finally:
        cluster.end()


@pytest.fixture
def collection_between_operations() -> Iterator[None]:
    """Collects no garbage but where the test says.

    Up to CPython 3.11.7 a collection inside `ast.parse` may run another `ast.parse`, and the outer
    one then fails with SystemError (python/cpython#106905). Hypothesis, Schemathesis and
    tracebacks parse source, so that a case failed once and not when it was tried again.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@schemathesis.hook
def map_path_parameters(context: Any, path_parameters: dict[str, Any]) -> dict[str, Any]:
    for name in IDS:
        value = (path_parameters or {}).get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value % 2:
            path_parameters[name] = value % IDS_KNOWN + 1
    return path_parameters


@schemathesis.hook
def map_headers(context: Any, headers: dict[str, Any]) -> dict[str, Any]:
    # What frames a request is the server's own affair, which answers in plain text.
    framing = ("content-length", "transfer-encoding", "connection", "upgrade", "expect", "host")
    return {name: header for name, header in (headers or {}).items() if name.lower() not in framing}


@pytest.mark.usefixtures("collection_between_operations")
def test_every_route_answers_anything_as_it_says(live: Any) -> None:
    wrong = []
    for found in live.get_all_operations():
        gc.collect()
        operation = found.ok()
        for mode in GenerationMode:
            try:
                _try(operation, mode)
            except Unsatisfiable:
                # The description leaves nothing to get wrong.
                continue
            except Exception as error:
                wrong.append(f"{operation.label}, {mode.value}: {error}")
    assert not wrong, "\n\n".join(wrong)


def _try(operation: Any, mode: GenerationMode) -> None:
    """Sends what fits the route's description, or does not, and holds the answers against it."""

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def answers_as_it_says(case: schemathesis.Case[Any]) -> None:
        # A valid request may still be refused for what it means, with a reason.
        case.call_and_validate(excluded_checks=[positive_data_acceptance])

    answers_as_it_says()
