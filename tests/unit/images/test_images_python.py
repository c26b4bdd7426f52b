"""The code that runs in a machine image's old Python, before the boot installs a newer Python."""

import hashlib
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from detcloud.agent.clouds import CLOUDS
from tests.emulators.gce.metadata import MachineMetadata, metadata_server
from tests.emulators.google_keys import GoogleKeys
from tests.emulators.http_server import AnsweringHandler, serve_requests
from tests.patience import PROCESS_SECONDS_MAX
from tests.unit.images.old_python import inline_programs, newer_names, require_old_python

ROOT = Path(__file__).parents[3]
BOOT = ROOT / "images/boot"
CODE = b"the agent's code"
METADATA = "/latest/meta-data/"
PAGES = {
    f"{METADATA}instance-id": "i-1",
    f"{METADATA}placement/region": "eu-central-1",
    f"{METADATA}iam/security-credentials/": "role",
    f"{METADATA}iam/security-credentials/role": json.dumps(
        {"AccessKeyId": "AKID", "SecretAccessKey": "secret", "Token": "session"}
    ),
    "/objects/code": CODE.decode(),
}
# Sends a boot report, and prints the files of detcloud's modules that the report imported.
REPORT = """
import sys
from detcloud.agent import boot_report
status = boot_report.main()
for name, module in list(sys.modules.items()):
    if name.partition(".")[0] == "detcloud":
        print(module.__file__)
raise SystemExit(status)
"""


@dataclass
class Cluster:
    """A cluster with the metadata services of both clouds. `received`: bodies by path."""

    environment: dict[str, str]
    url: str
    received: dict[str, dict[str, str]] = field(default_factory=dict)

    def run(
        self, python: Path, *arguments: str | Path, text: str = "", folder: Path = ROOT / "harness"
    ) -> str:
        """Run a Python in a folder, with `text` as its input, and return its output."""
        done = subprocess.run(
            [python, "-B", *arguments],
            env={**os.environ, **self.environment},
            cwd=folder,
            input=text,
            capture_output=True,
            text=True,
            timeout=PROCESS_SECONDS_MAX,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def send_report(self, python: Path, cloud: str, log: str) -> str:
        """Send a boot report as a machine of the cloud, and return the imported files."""
        options = ("--cloud", cloud, "--url", self.url, "--cluster", "lab", "--pool", "gpus")
        return self.run(python, "-c", REPORT, *options, text=log)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    class Handler(AnsweringHandler):
        def do_GET(self) -> None:
            self.answer(200 if self.path in PAGES else 404, PAGES.get(self.path, "").encode())

        def do_PUT(self) -> None:
            body = self.read_body()
            if body:
                made.received[self.path] = json.loads(body)
            self.answer(200, b"{}" if body else b"token")

        def do_POST(self) -> None:
            made.received[self.path] = json.loads(self.read_body())
            self.answer(303, b"", {"Location": f"{made.url}/objects/code"})

    machine = MachineMetadata("machine-1", GoogleKeys())
    with serve_requests(Handler) as host, metadata_server(machine) as metadata:
        environment = {
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://{host}",
            "GCE_METADATA_HOST": metadata,
            "no_proxy": "127.0.0.1",
        }
        made = Cluster(environment, f"http://{host}")
        yield made


def test_code_before_the_installation_needs_no_newer_python(cluster: Cluster) -> None:
    files: set[str] = set()
    for cloud in CLOUDS:
        files |= set(cluster.send_report(Path(sys.executable), cloud.name, "a log").splitlines())
    modules = [*sorted(BOOT.glob("*.py")), *(Path(file) for file in sorted(files))]
    programs = {str(path.relative_to(ROOT)): path.read_text() for path in modules}
    for script in sorted(BOOT.glob("*.sh")):
        for number, program in enumerate(inline_programs(script.read_text())):
            programs[f"{script.name}:{number}"] = program
    assert {"role_signature.py", "boot_report.py", "instance_identity.py", "gpus.sh:0"} <= {
        Path(place).name for place in programs
    }
    newer_by_place = {place: newer_names(source) for place, source in programs.items()}
    assert {place: names for place, names in newer_by_place.items() if names} == {}


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import datetime\ndatetime.datetime.now(datetime.UTC)", {"UTC"}),
        ("from typing import Self\nimport tomllib", {"Self", "tomllib"}),
        ("from functools import cache", {"functools.cache"}),
        ("'ab'.removeprefix('a')", {"removeprefix"}),
        ("zip([], [], strict=True)", {"zip(strict=)"}),
        ("@dataclass(frozen=True, slots=True)\nclass A: ...", {"dataclass(slots=)"}),
        ("Loc = tuple[int, ...]", {"tuple[int, ...]"}),
        ("isinstance(1, int | tuple)", {"int | tuple"}),
        ("from collections.abc import Callable as C\nA = C[[], None]", {"C[[], None]"}),
        ("def f(a: str | None): ...", {"str | None"}),
        ("{} | settings", {"{} | settings"}),
        ("from __future__ import annotations\ndef f(a: str | None) -> list[int]: ...", set()),
        ("if TYPE_CHECKING:\n    from typing import Self\n    Loc = list[int]", set()),
        ("import re\nre.I | re.S\ntables['a']", set()),
    ],
)
def test_rule_finds_newer_names_and_types(source: str, names: set[str]) -> None:
    assert newer_names(source) == names


@pytest.mark.parametrize(
    "source",
    [
        "try:\n    pass\nexcept* OSError:\n    pass",
        "match 1:\n    case 1:\n        pass",
        "with (open('a') as a, open('b') as b):\n    pass",
    ],
)
def test_rule_finds_newer_syntax(source: str) -> None:
    with pytest.raises(SyntaxError):
        newer_names(source)


@pytest.mark.parametrize(
    ("cloud", "instance", "proof"),
    [
        ("aws", "i-1", {"authorization", "date", "security_token"}),
        ("gcp", "machine-1", {"identity_token"}),
    ],
)
def test_old_python_sends_a_boot_report(
    cluster: Cluster, cloud: str, instance: str, proof: set[str]
) -> None:
    cluster.send_report(require_old_python(), cloud, "the disk is full, password=hunter2\n")
    report = cluster.received[f"/api/v1/instances/{instance}/boot-report"]
    assert report.keys() == {"resource_pool", "report", *proof}
    assert report["report"] == "the disk is full, password=********"


def test_old_python_fetches_the_agents_code(cluster: Cluster, tmp_path: Path) -> None:
    python = require_old_python()
    file = tmp_path / "agent.tar.gz"
    url = f"{cluster.url}/objects/code"
    cluster.run(python, BOOT / "fetch_code.py", url, "eu-central-1", file, folder=tmp_path)
    assert file.read_bytes() == CODE


def test_old_python_fetches_the_agents_code_from_another_cloud(
    cluster: Cluster, tmp_path: Path
) -> None:
    python = require_old_python()
    file, digest = tmp_path / "agent.tar.gz", hashlib.sha256(CODE).hexdigest()
    path = "/api/v1/instances/i-1/agent-code"
    arguments = (f"{cluster.url}{path}", "lab", "gpus", digest, "eu-central-1", file)
    cluster.run(python, BOOT / "ask_for_code.py", *arguments, folder=tmp_path)
    assert file.read_bytes() == CODE
    assert cluster.received[path]["sha256"] == digest


@pytest.mark.parametrize(
    ("cloud", "gpus", "before", "expected"),
    [
        ("aws", 8, {}, None),
        ("gcp", 8, {}, "/detcloud-trials"),
        ("gcp", 0, {}, "detcloud-trials.slice"),
        ("gcp", 0, {"exec-opts": ["native.cgroupdriver=cgroupfs"]}, "/detcloud-trials"),
        ("gcp", 0, {"cgroup-parent": "ours.slice"}, "ours.slice"),
    ],
)
def test_containers_on_google_cloud_are_outside_the_group_of_services(
    tmp_path: Path, cloud: str, gpus: int, before: dict[str, Any], expected: str | None
) -> None:
    (tmp_path / "etc/docker").mkdir(parents=True)
    settings = tmp_path / "etc/docker/daemon.json"
    settings.write_text(json.dumps(before))
    script = (BOOT / "gpus.sh").read_text()
    begin = f"root={tmp_path}; gpus=0\n"
    subprocess.run(
        ["bash", "-c", f"set -Eeuo pipefail\n{begin}{script}\nset_docker_options {gpus} {cloud}"],
        timeout=PROCESS_SECONDS_MAX,
        check=True,
    )
    assert json.loads(settings.read_text()).get("cgroup-parent") == expected


def test_old_python_writes_the_settings_of_docker(tmp_path: Path) -> None:
    python = require_old_python()
    (tmp_path / "etc/docker").mkdir(parents=True)
    settings = tmp_path / "etc/docker/daemon.json"
    settings.write_text('{"exec-opts": ["native.cgroupdriver=systemd", "a=b"], "debug": true}')
    script = (BOOT / "gpus.sh").read_text()
    begin = f'root={tmp_path}; python3() {{ {shlex.quote(str(python))} -B "$@"; }}; gpus=0\n'
    done = subprocess.run(
        ["bash", "-c", f"set -Eeuo pipefail\n{begin}{script}\nset_docker_options 8"],
        capture_output=True,
        text=True,
        timeout=PROCESS_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(settings.read_text()) == {
        "debug": True,
        "live-restore": True,
        "exec-opts": ["a=b", "native.cgroupdriver=cgroupfs"],
        "features": {"cdi": True},
    }
