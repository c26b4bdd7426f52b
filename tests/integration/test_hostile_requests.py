"""Requests generated from the API's own description, sent to a cluster with experiments."""

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

# Most integers in a path match no object: these ids probably do.
IDS = ("experiment_id", "trial_id")
IDS_KNOWN = 4
# Operations between two collections, each of which takes half a second.
COLLECTED_EVERY = 15
EXAMPLES = int(os.environ.get("REQUEST_EXAMPLES", "1"))


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Yield the schema of a running cluster with an ended and a paused experiment."""
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
    """Collect garbage only between operations.

    Up to CPython 3.11.7 a collection inside `ast.parse` may run another `ast.parse`, and the outer
    call then fails with SystemError (python/cpython#106905). Hypothesis, Schemathesis and
    tracebacks parse source, so that a case failed once and passed when repeated.
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
    # Headers that frame a request are handled by the server itself, which answers in plain text.
    framing = ("content-length", "transfer-encoding", "connection", "upgrade", "expect", "host")
    return {name: header for name, header in (headers or {}).items() if name.lower() not in framing}


@pytest.mark.usefixtures("collection_between_operations")
def test_every_route_answers_by_the_description(live: Any) -> None:
    wrong = []
    for number, found in enumerate(live.get_all_operations()):
        if number % COLLECTED_EVERY == 0:
            gc.collect()
        operation = found.ok()
        for mode in GenerationMode:
            try:
                _try(operation, mode)
            except Unsatisfiable:
                # The description allows no invalid request.
                continue
            except Exception as error:
                wrong.append(f"{operation.label}, {mode.value}: {error}")
    assert not wrong, "\n\n".join(wrong)


def _try(operation: Any, mode: GenerationMode) -> None:
    """Send requests that match or violate the route's description; validate the answers."""

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def answers_as_it_says(case: schemathesis.Case[Any]) -> None:
        # A valid request may still be refused for its content, with a reason.
        case.call_and_validate(excluded_checks=[positive_data_acceptance])

    answers_as_it_says()
