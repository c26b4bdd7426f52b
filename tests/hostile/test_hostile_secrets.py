"""Secrets of a cluster reach only the trials that need them.

No answer, history, log, error or command line contains a secret.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from detcloud.client import Client
from detcloud.shared.http import ApiError, Transport
from tests.end_to_end.laptop import Laptop
from tests.patience import wait_until
from tests.unit.api.test_api_owners import DELIVERY

pytestmark = pytest.mark.end_to_end

VARIABLE, DATUM = "canary-variable-81f2", "canary-datum-33c7"
CONFIGURED = {
    "variable": VARIABLE,
    "datum": DATUM,
    "registry": "canary-registry-5d0e",
    "layer key": "canary-layer-access-90aa",
    "layer secret": "canary-layer-secret-17bd",
    "carried": "canary-carried-4c4c",
}
POOL = {"pool registry": "canary-pool-2f9b", "pool script": "canary-script-6e11"}
TEMPLATE = {"template key": "canary-template-77e1", "template variable": "canary-template-0b0b"}

# Routes that refuse these requests: no experiment has a custom search or an open upload, no tunnel
# is open, and only agents read the archives of packages.
REFUSED_HERE = (
    "/searcher-events",
    "/checkpoint-uploads/{trial_id}/{uuid}/files",
    "/agents/{agent_id}/package-archives",
    "/agent-code/{sha256}",
    "/tunnels/{tunnel_id}",
)

# The program has received the real values, and prints its configuration like users do.
TRAIN = f"""
import json, os, sys, time
from detcloud import core

with core.init() as context:
    config = dict(context.info.config)
    data = config.pop("data")
    assert os.environ["HF_TOKEN"] == "{VARIABLE}", "the variable is not the one configured"
    assert os.environ["OTHER_SECRET"] == "{TEMPLATE["template variable"]}"
    assert data["service"]["api_key"] == "{DATUM}", "the datum is not the one configured"
    print("configured:", json.dumps(config), flush=True)
    for operation in context.searcher.operations():
        with context.checkpoint.store_path({{"steps_completed": operation.length}}) as (folder, _):
            (folder / "state").write_text("x")
        while os.path.exists("wait") and not context.preempt.should_preempt():
            time.sleep(0.05)
        if context.preempt.should_preempt():
            break
        if context.info.hparams["x"] > 1:
            raise ArithmeticError("x is too large")
        context.train.report_validation_metrics(operation.length, {{"loss": 0.5}})
        operation.complete(0.5)
"""


def config(**changes: Any) -> dict[str, Any]:
    return {
        "name": "with secrets",
        "entrypoint": ["python", "train.py"],
        "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 2}},
        "hyperparameters": {"x": 0.5},
        "max_restarts": 0,
        "environment": {
            "environment_variables": [
                f"HF_TOKEN={VARIABLE}",
                f"OTHER_SECRET={TEMPLATE['template variable']}",
            ],
            "registry_auth": {"username": "u", "password": CONFIGURED["registry"]},
        },
        "data": {"service": {"api_key": DATUM}, "path": "/data"},
        "data_layer": {
            "type": "s3",
            "bucket": "b",
            "bucket_directory_path": "p",
            "access_key": CONFIGURED["layer key"],
            "secret_key": CONFIGURED["layer secret"],
        },
        "integrations": {"pachyderm": {"pachd": {"token": CONFIGURED["carried"]}}},
        **changes,
    }


class Transcript:
    """Every text that the cluster printed, answered or stored, with the place."""

    def __init__(self) -> None:
        self.texts: list[tuple[str, bytes]] = []

    def note(self, where: str, text: bytes | str) -> None:
        self.texts.append((where, text if isinstance(text, bytes) else text.encode()))

    def find_secrets(self, secrets: dict[str, str]) -> list[str]:
        return [
            f"{name} in {where}: {text[max(0, at - 60) : at + 60]!r}"
            for where, text in self.texts
            for name, secret in secrets.items()
            if (at := text.find(secret.encode())) >= 0
        ]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    return folder


def test_secrets_appear_in_no_output_of_the_cluster(
    laptop: Laptop, tmp_path: Path, model: Path
) -> None:
    transcript = Transcript()
    laptop.run("up")
    with laptop.cluster() as admin:
        minted = _lives(laptop, admin, model, transcript)
        admin.create_report("rates", "a text", sharing="read")
        own = (laptop.home / "token").read_text().strip()
        _record_answers(admin, own, "admin", transcript)
        _record_answers(admin, minted["user"], "another user", transcript)
        lived = [
            (experiment.id, next(experiment.trials()).id) for experiment in admin.experiments()
        ]
    _every_command(laptop, lived, tmp_path, transcript)
    laptop.run("down")
    _every_file(laptop, transcript)
    secrets = {**CONFIGURED, **POOL, **minted, **_own_secrets(laptop)}
    assert "\n".join(transcript.find_secrets(secrets)) == ""
    # Only the template's owner and admins may see the template's secrets.
    transcript.texts = [
        entry for entry in transcript.texts if not entry[0].startswith("admin: /templates")
    ]
    assert "\n".join(transcript.find_secrets(TEMPLATE)) == ""
    assert len(transcript.texts) > 60


def _lives(laptop: Laptop, admin: Client, model: Path, transcript: Transcript) -> dict[str, str]:
    """Run experiments with secrets and with mistakes; return the created tokens."""
    tokens = {
        "user": laptop.json("token", "create", "bob", "--role", "user")["token"],
        "revoked": laptop.json("token", "create", "eve", "--role", "user")["token"],
    }
    entries = {entry["user"]: entry["id"] for entry in laptop.json("token", "list")}
    laptop.run("token", "revoke", entries["eve"])
    template = {
        "environment": {"environment_variables": [f"OTHER_SECRET={TEMPLATE['template variable']}"]},
        "integrations": {"x": {"access_key": TEMPLATE["template key"]}},
    }
    admin.set_template("shared", json.dumps(template))
    laptop.run("resource-pool", "create", "secret", _written_pool(laptop.home.parent))
    (model / "wait").touch()
    running = admin.create_experiment(config(), model, template="shared")
    wait_until(lambda: laptop.running())
    for process in laptop.processes():
        transcript.note(
            f"command of {process.pid}", Path(f"/proc/{process.pid}/cmdline").read_bytes()
        )
    for path in laptop.home.rglob("*"):
        _note_file(laptop.home, path, transcript)
    running.pause()
    wait_until(lambda: next(running.trials()).state == "PAUSED" and not laptop.running())
    running.activate()
    running.kill()
    (model / "wait").unlink()
    admin.create_experiment(config(hyperparameters={"x": 2}), model, template="shared")
    done = admin.create_experiment(config(), model, template="shared")
    done.wait()
    admin.create_model("shared").register_version(next(done.checkpoints()).uuid)
    wait_until(lambda: all(experiment.has_ended for experiment in admin.experiments()))
    states = sorted(experiment.state for experiment in admin.experiments())
    assert states == ["CANCELED", "COMPLETED", "ERROR"], [t.message for t in running.trials()]
    _mistakes(admin, model, transcript)
    return tokens


def _written_pool(folder: Path) -> Path:
    """Write and return the file of a pool with secrets."""
    login = {"username": "u", "password": POOL["pool registry"]}
    provider = {"type": "local", "startup_script": POOL["pool script"]}
    file = folder / "pool.yaml"
    defaults = {"registry_auth": login}
    file.write_text(json.dumps({"provider": provider, "task_container_defaults": defaults}))
    return file


def _mistakes(admin: Client, model: Path, transcript: Transcript) -> None:
    """Record refusals of requests with a mistake near a secret, or in a secret."""
    wrong: list[dict[str, Any]] = [
        config(max_restarts="many"),
        config(data_layer={**config()["data_layer"], "bucket": 5}),
        config(data_layer={**config()["data_layer"], "secret_kee": CONFIGURED["layer secret"]}),
        config(environment={"registry_auth": {"pasword": CONFIGURED["registry"]}}),
        config(environment={"registry_auth": {"identitytoken": [CONFIGURED["registry"]]}}),
        config(environment={"registry_auth": CONFIGURED["registry"]}),
        config(environment={"environment_variables": [VARIABLE]}),
        config(environment={"environment_variables": {"HF_TOKEN": VARIABLE}}),
        config(environment={"environment_variables": VARIABLE}),
        config(checkpoint_storage={"type": "s3", "bucket": "b", "secret_key": [DATUM]}),
        config(data=DATUM),
    ]
    for n, refused in enumerate(wrong):
        with pytest.raises(ApiError) as caught:
            admin.create_experiment(refused, model, template="shared")
        transcript.note(f"mistake {n}", f"{caught.value} {caught.value.details}")
    for override in (f"provider.startup_script=[{POOL['pool script']}]", "budget=x"):
        with pytest.raises(ApiError) as caught:
            admin.set_resource_pool("secret", overrides=[override])
        transcript.note(f"pool override {override[:9]}", f"{caught.value} {caught.value.details}")
    for override in (f"environment.registry_auth={VARIABLE}", f"data={DATUM}"):
        with pytest.raises(ApiError) as caught:
            admin.create_experiment(config(), model, overrides=[override])
        transcript.note(f"override {override[:9]}", f"{caught.value} {caught.value.details}")


def _record_answers(client: Client, token: str, who: str, transcript: Transcript) -> None:
    """Record the answer of every GET route for every existing id."""
    transport = Transport(client.url, token)
    experiments = [experiment.id for experiment in client.experiments()]
    trials = [trial.id for experiment in client.experiments() for trial in experiment.trials()]
    checkpoints = [
        checkpoint.uuid
        for experiment in client.experiments()
        for checkpoint in experiment.checkpoints()
    ]
    named: dict[str, list[Any]] = {
        "experiment_id": experiments,
        "trial_id": trials,
        "uuid": checkpoints,
        "name": ["shared"],
        "number": [1],
        "agent_id": ["local"],
        "resource_pool": ["default", "secret"],
        "alarm": ["queue-wait"],
        "report_id": [report.id for report in client.reports()],
        "job_id": [job.job_id for job in client.jobs()],
        "sha256": [experiment.data["code_sha256"] for experiment in client.experiments()],
        "tunnel_id": ["unknown-tunnel"],
        "webhook_id": [item["id"] for item in client.items("/webhooks")],
        "delivery_id": [DELIVERY],
        "schedule_id": [schedule.id for schedule in client.schedules()],
    }
    paths = transport.request("GET", "/api/v1/openapi.json")["paths"]
    queries = {
        "/experiment-curves": "?experiments=1",
        "/trials/{trial_id}/metrics/series": "?group=validation",
        "/experiments/{experiment_id}/code/file": "?path=train.py",
    }
    for path, methods in paths.items():
        # Objects need a signature, and the agent's code is everybody's.
        if "get" not in methods or "{key}" in path:
            continue
        for target in _fill_path(path.removeprefix("/api/v1"), named):
            content = io.BytesIO()
            query = queries.get(path.removeprefix("/api/v1"), "")
            try:
                transport.download(f"/api/v1{target}{query}", content)
            except ApiError as refused:
                if not path.endswith(REFUSED_HERE):
                    raise
                transcript.note(f"{who}: {target}", str(refused).encode())
                continue
            # The text of our program contains the canaries for comparison.
            if not path.endswith("/code/file"):
                transcript.note(f"{who}: {target}", _unpack_answer(content.getvalue()))
    transport.close()


def _fill_path(path: str, named: dict[str, list[Any]]) -> Iterator[str]:
    match = re.search(r"\{(\w+)\}", path)
    if match is None:
        yield path
        return
    for value in named[match[1]]:
        yield from _fill_path(path.replace(match[0], str(value), 1), named)


def _every_command(
    laptop: Laptop, lived: list[tuple[int, int]], tmp_path: Path, transcript: Transcript
) -> None:
    commands: list[list[object]] = [
        ["list", "--json"],
        ["status"],
        ["master", "info", "--json"],
        ["master", "logs"],
        ["agent", "list", "--json"],
        ["token", "list", "--json"],
        ["job", "list", "--json"],
        ["resource-pool", "list", "--json"],
        ["resource-pool", "describe", "secret", "--json"],
        ["user", "whoami", "--json"],
    ]
    for number, trial in lived:
        commands += [
            ["describe", number, "--json"],
            ["experiment", "config", number],
            ["experiment", "list-trials", number, "--json"],
            ["logs", number],
            ["history", number],
            ["replay", number],
            ["trial", "describe", trial, "--json"],
            ["trial", "logs", trial],
        ]
        bundle = ["trial", "support-bundle", trial, "-o", tmp_path]
        path = Path(laptop.run(*bundle).stdout.strip())
        transcript.note(f"support bundle {trial}", _unpack_answer(path.read_bytes()))
    for words in commands:
        done = laptop.run(*words)
        transcript.note(f"detcloud {words}", done.stdout + done.stderr)


def _unpack_answer(content: bytes) -> bytes:
    if content[:2] != b"\x1f\x8b":
        return content
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        members = [archive.extractfile(member) for member in archive if member.isfile()]
        texts = [member.read() for member in members if member is not None]
    # The uploaded model code: our program contains the canaries for comparison.
    return b"".join(text for text in texts if b"the variable is not the one" not in text)


def _every_file(laptop: Laptop, transcript: Transcript) -> None:
    for path in laptop.home.rglob("*"):
        _note_file(laptop.home, path, transcript)


def _note_file(home: Path, path: Path, transcript: Transcript) -> None:
    """Record a file, except files that store secrets and the model code, which contains ours."""
    name = path.relative_to(home).as_posix()
    keeps = name.startswith(("state.db", "token", "agent.token", "signing.key", "objects/model-"))
    is_code = path.name == "train.py" or "cache/code" in name
    if keeps or is_code or not path.is_file() or path.is_symlink():
        return
    if path.name == "launch.json":
        # The agent's file for a trial's supervisor, in a folder that no trial reads.
        assert path.stat().st_mode & 0o077 == 0
        return
    try:
        content = path.read_bytes()
    except OSError:
        return
    if name.endswith("in/spec.json"):
        # The trial may read its own data and their keys.
        content = json.dumps({**json.loads(content), "config": {}, "data_layer": {}}).encode()
    transcript.note(
        f"file {name}", gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    )


def _own_secrets(laptop: Laptop) -> dict[str, str]:
    """Return the cluster's own secrets."""
    names = ("token", "agent.token", "signing.key")
    return {name: (laptop.home / name).read_text().strip() for name in names}
