"""Boots of broken machines on both clouds: each ends at once, with a report of the reason.

The whole boot script runs on a stub machine, with a cluster and a metadata service over HTTP.
"""

import gzip
import json
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from control_plane.agents.agent_code import agent_code
from control_plane.fleet.records import IntentRow, Market, Offering
from lambdas.aws.boot import user_data
from lambdas.gcp.boot import startup_script
from tests.emulators.gce.metadata import MachineMetadata, metadata_server
from tests.emulators.google_keys import GoogleKeys
from tests.emulators.stub_machine import StubMachine
from tests.thinning import every

CLUSTER = "detcloud-vision"
GPUS = 8
# A type of each cloud with eight GPUs.
TYPES = {"aws": "p4d.24xlarge", "gcp": "a2-highgpu-8g"}
FILE_SYSTEMS = {
    "aws": {"id": "fs-1", "folder": "/mnt/data"},
    "gcp": {"server": "nfs.lab.example", "share": "/vol1", "folder": "/mnt/data"},
}
ROLE_KEYS = {"AccessKeyId": "AKID", "SecretAccessKey": "secret", "Token": "token"}
# Waits of the script and its programs, by the text that sets them.
WAITS = {
    "-lt 120 ] || break": "-lt 0 ] || break",
    "--retry 10 --retry-all-errors": "--retry 0",
    "ATTEMPTS, PAUSE_SECONDS = 10, 3": "ATTEMPTS, PAUSE_SECONDS = 1, 0",
    "waited < 600": "waited < 5",
    "--retry 5 --retry-all-errors": "--retry 0",
    "--retry 5": "--retry 0",
    "sleep 1\n": "sleep 0.1\n",
    "sleep 5\n": "sleep 0.2\n",
}


@dataclass
class Scene:
    """A machine before its boot, and its cluster.

    `code`: the agent's code in the bucket, None if the machine may not read the code. `section`:
    the pool's settings. `environment`: variables of the boot script. `url`: the URL of the
    cluster's API. `reports`: texts of boot reports.
    """

    cloud: str
    machine: StubMachine
    code: bytes | None = agent_code().content
    section: dict[str, object] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    url: str = ""
    reports: list[str] = field(default_factory=list)

    def boot(self, served: str) -> int:
        """Render and run the boot script; return its exit status.

        `served` is the URL of the bucket and of AWS's metadata service.
        """
        offering = Offering("o", TYPES[self.cloud], "a", Market.SPOT, GPUS)
        section = json.dumps(self.section)
        request = IntentRow("intent-1", CLUSTER, "gpus", offering, 1, "t" * 40, 1_000, section)
        place = f"{served}/objects/agent-code"
        if self.cloud == "aws":
            script = gzip.decompress(user_data(self.url, CLUSTER, place)(request)).decode()
        else:
            script = startup_script(self.url, CLUSTER, place)(request).decode()
        for text, quick in WAITS.items():
            script = script.replace(text, quick)
        if self.url != served:
            # No report arrives at another address.
            script = script.replace("timeout 120 \\", "timeout 1 \\")
        with metadata_server(MachineMetadata("machine-1", GoogleKeys())) as host:
            own = {"GCE_METADATA_HOST": host, "AWS_EC2_METADATA_SERVICE_ENDPOINT": served}
            return self.machine.boot(script, {**own, **self.environment})


@pytest.fixture(params=["aws", "gcp"])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Scene:
    made = Scene(request.param, StubMachine(tmp_path))
    made.machine.add_gpus(GPUS)
    return made


@contextmanager
def cloud_server(scene: Scene, certificate: Path | None = None, clock: str = "") -> Iterator[str]:
    """Serve the scene's API, bucket and AWS metadata; yield the URL.

    `certificate`: the file of the key and certificate for HTTPS. `clock`: the time in answers.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            place = "/latest/meta-data/"
            pages = {
                f"{place}instance-id": "machine-1",
                f"{place}placement/region": "eu-central-1",
                f"{place}iam/security-credentials/": "role",
                f"{place}iam/security-credentials/role": json.dumps(ROLE_KEYS),
            }
            if self.path.startswith("/objects/"):
                self._answer(403 if scene.code is None else 200, scene.code or b"")
            else:
                self._answer(200 if self.path in pages else 404, pages.get(self.path, "").encode())

        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.path.endswith("/boot-report"):
                scene.reports.append(json.loads(body)["report"])
            self._answer(200, b"token" if self.path.endswith("/token") else b"{}")

        def date_time_string(self, timestamp: float | None = None) -> str:
            return clock or super().date_time_string(timestamp)

        def _answer(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Write nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        scheme = "http"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
            scheme = "https"
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"{scheme}://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_whole_machine_boots_with_gpus_of_containers(scene: Scene) -> None:
    with cloud_server(scene) as scene.url:
        status = scene.boot(scene.url)
    assert status == 0, scene.machine.log
    root = scene.machine.root
    generated = f"generate --device-name-strategy=uuid --output={root}/etc/cdi/nvidia.yaml"
    assert f"nvidia-ctk cdi {generated}" in scene.machine.commands
    settings = json.loads((root / "etc/docker/daemon.json").read_text())
    # Containers outlive a restart of Docker. On Google Cloud, their control group differs from the
    # group of system services, which read the metadata.
    assert settings == {
        "live-restore": True,
        "exec-opts": ["native.cgroupdriver=cgroupfs"],
        "features": {"cdi": True},
        **({"cgroup-parent": "/detcloud-trials"} if scene.cloud == "gcp" else {}),
    }
    # No update replaces the driver below a running trial.
    assert "systemctl mask --now apt-daily.timer apt-daily-upgrade.timer" in scene.machine.commands
    periodic = (root / "etc/apt/apt.conf.d/99detcloud").read_text()
    assert 'APT::Periodic::Unattended-Upgrade "0";' in periodic
    assert scene.reports == []


Break = Callable[[Scene], None]
"""Breaks a scene before the boot."""


def program(name: str, code: str) -> Break:
    """Return a fault that replaces a program by shell code."""

    def fault(scene: Scene) -> None:
        scene.machine.programs[name] = code

    return fault


def without(name: str, **programs: str) -> Break:
    """Return a fault that removes a program and replaces others by shell code."""

    def fault(scene: Scene) -> None:
        scene.machine.remove(name)
        scene.machine.programs |= {key.replace("_", "-"): code for key, code in programs.items()}

    return fault


def working_gpus(count: int, driver: str = "580.95.05") -> Break:
    def fault(scene: Scene) -> None:
        lines = "".join(f"{driver}, GPU-{number:08x}\\n" for number in range(count))
        scene.machine.programs["nvidia-smi"] = f"printf '{lines}'"

    return fault


def no_toolkit(key: str) -> Break:
    """Return a fault: the toolkit is missing, and NVIDIA's key is `key`; "" for no way to it."""

    def fault(scene: Scene) -> None:
        scene.machine.remove("nvidia-ctk")
        place = scene.machine.root / "packages"
        place.mkdir()
        if key:
            (place / "gpgkey").write_text(key)
        scene.environment["DETCLOUD_TOOLKIT_PLACE"] = place.as_uri()

    return fault


def no_code(scene: Scene) -> None:
    scene.code = None


def changed_code(scene: Scene) -> None:
    scene.code = b"something else"


def file_system(scene: Scene) -> None:
    scene.section["file_systems"] = [FILE_SYSTEMS[scene.cloud]]
    scene.machine.programs |= {"mount": "exit 32", "mount.nfs4": ""}


def address(url: str) -> Break:
    def fault(scene: Scene) -> None:
        scene.url = url

    return fault


def proxy(scene: Scene) -> None:
    scene.url = "http://cluster.example"
    scene.environment |= {"http_proxy": "http://proxy.invalid:3128", "no_proxy": "127.0.0.1"}


def clock(scene: Scene) -> None:
    # The clock of the machine is an hour fast.
    scene.machine.programs["date"] = (
        'if [ "$*" = +%s ]; then echo $(($(exec -a date "$REAL_DATE" +%s) + 3600)); '
        'else exec "$REAL_DATE" "$@"; fi'
    )
    scene.environment["REAL_DATE"] = "/bin/date"


APT_FAILS = 'case "$*" in *install*) exit 100;; esac'
BROKEN: dict[str, tuple[Break, str]] = {
    "no driver": (without("nvidia-smi"), "has no NVIDIA driver, but the machine has 8 NVIDIA GPU"),
    "driver not loaded": (
        program("nvidia-smi", "echo NVIDIA-SMI has failed; exit 9"),
        "the NVIDIA driver does not work: NVIDIA-SMI has failed",
    ),
    "driver too old": (working_gpus(8, "470.82.01"), "driver 470.82.01 is too old"),
    "one GPU of eight": (working_gpus(1), "1 of 8 GPUs work"),
    "no GPU": (working_gpus(0), "0 of 8 GPUs work"),
    "no toolkit and no way to it": (no_toolkit(""), "container toolkit cannot be installed"),
    "key of a stranger": (no_toolkit("no key"), "packages is not the expected key"),
    "toolkit without GPUs": (
        program("nvidia-ctk", "echo failed to initialize NVML; exit 1"),
        "nvidia-ctk cannot describe the GPUs to Docker",
    ),
    "no Docker package": (
        without("docker", apt_get=APT_FAILS),
        "the packages docker.io could not be installed",
    ),
    "no iptables package": (
        without("iptables", apt_get=APT_FAILS),
        "the packages iptables could not be installed",
    ),
    "Docker does not start": (
        program("systemctl", 'case "$*" in "restart docker") exit 1;; esac'),
        "Docker does not start",
    ),
    "disk full": (program("df", "echo Avail; echo 3"), "has 3 GiB free"),
    "clock off": (clock, "s off the cluster's clock"),
    "no DNS": (address("http://cluster.invalid"), "the name cluster.invalid cannot be resolved"),
    "no way to the cluster": (address("http://127.0.0.1:1"), "127.0.0.1 cannot be reached"),
    "no proxy": (proxy, "the name of the proxy cannot be resolved"),
    "code forbidden": (no_code, "the agent's code could not be fetched"),
    "code changed": (changed_code, "the agent's code has another digest"),
    "file system": (file_system, "cannot be mounted at /mnt/data"),
    "agent silent": (program("systemctl", ""), "the agent started and did not reach the cluster"),
    "user cannot be created": (program("usermod", "exit 6"), "status 6 in line"),
}


@pytest.mark.parametrize("fault", every(3, BROKEN))
def test_broken_machine_reports_the_reason_and_ends(scene: Scene, fault: str) -> None:
    break_scene, reason = BROKEN[fault]
    with cloud_server(scene) as served:
        scene.url = served
        break_scene(scene)
        status = scene.boot(served)
    log = scene.machine.log
    assert status != 0, log
    [last] = [line for line in log.splitlines() if line.startswith("detcloud: the boot failed: ")]
    assert reason in last
    assert scene.machine.commands[-1] == "systemctl poweroff"
    # The cluster hears the reason, unless the machine has no code or no way to the cluster.
    if scene.code == agent_code().content and scene.url == served and fault != "clock off":
        assert reason in scene.reports[0], log


@pytest.mark.parametrize("offset", [0, 40_000])
def test_unknown_certificates_and_wrong_clocks_are_distinguished(
    scene: Scene, tmp_path: Path, offset: int
) -> None:
    certificate = tmp_path / "certificate.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"),
            *("-subj", "/CN=127.0.0.1", "-keyout", certificate, "-out", tmp_path / "public.pem"),
        ],
        check=True,
        capture_output=True,
    )
    certificate.write_text(certificate.read_text() + (tmp_path / "public.pem").read_text())
    late = "Tue, 01 Jan 2019 00:00:00 GMT" if offset else ""
    with cloud_server(scene) as served, cloud_server(scene, certificate, late) as scene.url:
        scene.boot(served)
    reason = "the clock of the machine is" if offset else "the certificate of 127.0.0.1 is not acc"
    assert reason in scene.machine.log
