"""The boot script of Compute Engine's instances, against a metadata server and a bucket."""

import base64
import json
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from control_plane.agents.agent_code import agent_code
from control_plane.agents.identity import InvalidProof, Proof
from control_plane.fleet.records import IntentRow, Market, Offering
from control_plane.gcp.google_certificates import GoogleCertificates
from control_plane.gcp.instance_identity import GoogleIdentityVerifier
from control_plane.gcp.nfs_shares import NFS_VERSION_DEFAULT
from detcloud.agent.options import STOP_SECONDS
from detcloud.shared.identity_purposes import AGENT_CODE, BOOT_REPORT
from lambdas.gcp.boot import startup_script
from provisioner.clouds.gcp.launch_request import STARTUP_SCRIPT_BYTES_MAX
from provisioner.clouds.provider import ConfigurationError
from tests.emulators.gce.metadata import MachineMetadata, metadata_server
from tests.emulators.google_keys import GoogleKeys, certificate_server
from tests.emulators.stub_machine import FAIL_BOOT
from tests.patience import PROCESS_SECONDS_MAX

# Systemd's default limit for stopping a unit.
SYSTEMD_STOP_SECONDS = 90
URL, CLUSTER = "https://detcloud-vision-api-1.us-central1.run.app", "detcloud-vision"
PLACE = "https://storage.googleapis.com/detcloud-vision-objects/agent-code"
OFFERING = Offering("n1/a/spot", "n1-standard-4", "us-central1-a", Market.SPOT, 1)
REQUEST = IntentRow("intent-1", CLUSTER, "gpus", OFFERING, 1, "t" * 40, 1_000, "{}")


def script(section: object = None, url: str = URL, place: str = PLACE) -> str:
    request = replace(REQUEST, section=json.dumps(section or {}))
    return startup_script(url, CLUSTER, place)(request).decode()


def test_gce_script_has_the_address_and_the_digest_of_the_agents_code() -> None:
    text = script({"allowed_mounts": ["/mnt/data"], "cpu_slots_allowed": True})
    for line in (
        f"url='{URL}'",
        f"cluster='{CLUSTER}'",
        "pool='gpus'",
        f"code_place='{PLACE}'",
        f"code_sha256='{agent_code().sha256}'",
        "mounts='/mnt/data'",
        "cpu_slots='1'",
    ):
        assert line in text.splitlines()
    assert not re.findall(r"@[A-Z0-9_]+@", text)
    assert len(text) < STARTUP_SCRIPT_BYTES_MAX / 10
    assert subprocess.run(["bash", "-n"], input=text.encode(), check=False).returncode == 0


@pytest.mark.parametrize(
    ("duration", "seconds"),
    [({"seconds": 120}, 120), ({"seconds": "120"}, 120), ({"seconds": 0}, 30), ({}, 30), ("x", 30)],
)
def test_agent_knows_the_length_of_a_notice(duration: object, seconds: int) -> None:
    section = {"base_config": {"scheduling": {"preemptionNoticeDuration": duration}}}
    assert f"preemption_seconds='{seconds}'" in script(section).splitlines()
    extended = script({"extended_preemption_notice": True})
    assert "preemption_seconds='120'" in extended.splitlines()


def test_startup_script_is_encoded_and_mounts_are_checked() -> None:
    own = "echo 'hello'; exit 3\n@POOL@ $HOME"
    text = script({"startup_script": own})
    assert base64.b64encode(own.encode()).decode() in text
    assert own not in text
    with pytest.raises(
        ConfigurationError, match=r"allowed_mounts .* cannot be used in a boot script"
    ):
        script({"allowed_mounts": ["/a'; reboot; '"]})


SHARES = [
    {"server": "10.0.0.2", "share": "/vol1", "folder": "/mnt/data"},
    {"server": "nfs.lab.example", "share": "/homes", "folder": "/mnt/homes", "version": "4.1"},
]


def test_trials_may_mount_the_pools_shares() -> None:
    text = script({"allowed_mounts": ["/mnt/more"], "file_systems": SHARES})
    assert "mounts='/mnt/more /mnt/data /mnt/homes'\n" in text
    # Shares are mounted before the agent starts, also after a restart of the machine.
    assert "mount_points='/mnt/data /mnt/homes'\n" in text
    mounts, starts = "\nmount_file_system nfs 10.0.0.2:/vol1", "enable --now detcloud-agent.service"
    assert text.index(mounts) < text.index(starts)
    assert subprocess.run(["bash", "-n"], input=text.encode(), check=False).returncode == 0
    assert "mount_file_system" not in script()
    with pytest.raises(
        ConfigurationError, match=r"file_systems .* cannot be used in a boot script"
    ):
        script({"file_systems": [{**SHARES[0], "server": "a'; reboot; '"}]})


@pytest.mark.parametrize(
    ("has_client", "failing"), [(True, ""), (False, ""), (True, "mount"), (False, "apt-get")]
)
def test_boot_mounts_shares_or_fails(tmp_path: Path, has_client: bool, failing: str) -> None:
    programs, log = tmp_path / "bin", tmp_path / "log"
    programs.mkdir()
    (tmp_path / "etc").mkdir()
    for name in ("apt-get", "mount", *(["mount.nfs4"] if has_client else [])):
        code = int(name == failing)
        installs = f"echo > {programs}/mount.nfs4; chmod +x {programs}/mount.nfs4"
        (programs / name).write_text(
            f'#!/bin/sh\necho "{name} $*" >> {log}\n'
            f'case "$*" in *install*) {installs};; esac\nexit {code}\n'
        )
        (programs / name).chmod(0o755)
    part = re.search(
        r"^install_nfs_client\(\) \{.*?^\}\n\n.*?^\}\n((?:mount_file_system [^\n]*\n)+)",
        script({"file_systems": SHARES}),
        re.M | re.S,
    )
    assert part
    done = subprocess.run(
        [
            "bash",
            "-c",
            f"set -Eeuo pipefail; root={tmp_path}\n{FAIL_BOOT}{part[0]}",
        ],
        # The path lacks the folder of a real mount.nfs4.
        env={"PATH": f"{programs}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode == 0) is (not failing), done.stderr
    calls = [line.split()[0] for line in log.read_text().splitlines()]
    if failing == "mount":
        assert "10.0.0.2:/vol1 cannot be mounted at /mnt/data" in done.stdout
    if not failing:
        assert calls == [*([] if has_client else ["apt-get"] * 2), "mount", "mount"]
        table = [line.split() for line in (tmp_path / "etc/fstab").read_text().splitlines()]
        assert [(*row[:3], row[3].split(",")[0]) for row in table] == [
            ("10.0.0.2:/vol1", "/mnt/data", "nfs", f"vers={NFS_VERSION_DEFAULT}"),
            ("nfs.lab.example:/homes", "/mnt/homes", "nfs", "vers=4.1"),
        ]


@dataclass
class Cloud:
    """A bucket that accepts only the machine's tokens, and an API for boot reports and code.

    `reports` and `requests`: path and body of each boot report and each request for code. `signed`:
    the content behind the API's signed URL.
    """

    machine: MachineMetadata
    url: str = ""
    reports: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    signed: bytes = agent_code().content


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    stub = Cloud(MachineMetadata("detcloud-vision-a1b2", GoogleKeys()))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/objects/signed":
                self._answer(200, stub.signed)
                return
            bearer = self.headers.get("Authorization", "").removeprefix("Bearer ")
            is_known = bearer in stub.machine.access_tokens
            is_there = self.path == f"/objects/agent-code/{agent_code().sha256}"
            status = 403 if not is_known else 200 if is_there else 404
            self._answer(status, agent_code().content if status == 200 else b"")

        def do_PUT(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            stub.reports.append((self.path, body))
            self._answer(200, b"{}")

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            stub.requests.append((self.path, body))
            self._answer(303, b"", f"{stub.url}/objects/signed")

        def _answer(self, status: int, content: bytes, place: str = "") -> None:
            self.send_response(status)
            if place:
                self.send_header("Location", place)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Write nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        stub.url = f"http://127.0.0.1:{server.server_port}"
        yield stub
        server.shutdown()


STUBS = {
    # `id` finds the user after useradd.
    "id": '[ -e "$DETCLOUD_ROOT/user" ]',
    "useradd": 'touch "$DETCLOUD_ROOT/user"',
    "runuser": 'shift 3; exec "$@"',
    # The agent reaches the cluster at the start of the agent.
    "systemctl": 'case "$*" in *-agent*) sleep 1; touch "$DETCLOUD_ROOT/run/detcloud/alive";; esac',
    **dict.fromkeys(("chown", "docker", "iptables", "mount", "usermod"), ""),
    # The machine has no local disks.
    **dict.fromkeys(("lsblk", "mountpoint", "nvidia-smi"), "exit 1"),
}


def boot(
    cloud: Cloud, root: Path, fails: str = "", *, elsewhere: bool = False
) -> tuple[int, list[str]]:
    """Run the script with `root` as its disk; return its status and the stubbed commands.

    The command `fails` fails. `elsewhere`: the cluster's bucket is in a different cloud.
    """
    programs = root / "bin"
    programs.mkdir(exist_ok=True)
    for name, command in STUBS.items():
        ends = "exit 1" if name == fails else command
        path = programs / name
        path.write_text(f'#!/bin/bash\necho "{name} $*" >> "$DETCLOUD_ROOT/said"\n{ends}\n')
        path.chmod(0o755)
    (root / "said").unlink(missing_ok=True)
    place = "" if elsewhere else f"{cloud.url}/objects/agent-code"
    text = script(url=cloud.url, place=place)
    with metadata_server(cloud.machine) as host:
        done = subprocess.run(
            ["bash"],
            input=text.encode(),
            env={
                "PATH": f"{programs}:{os.environ['PATH']}",
                "DETCLOUD_ROOT": str(root),
                "GCE_METADATA_HOST": host,
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=PROCESS_SECONDS_MAX,
            check=False,
        )
    cloud.machine.set_down(False)
    command_log = root / "said"
    return done.returncode, command_log.read_text().splitlines() if command_log.exists() else []


def test_boot_starts_the_agent_once(cloud: Cloud, tmp_path: Path) -> None:
    status, commands = boot(cloud, tmp_path)
    log = (tmp_path / "var/log/detcloud-boot.log").read_text()
    assert status == 0, log
    assert commands[:2] == [
        "systemctl daemon-reload",
        "systemctl enable --now detcloud-watchdog.service",
    ]
    started = [line.split()[-1] for line in commands if "enable --now" in line]
    # The metadata server is closed before the agent starts.
    assert started[-2:] == ["detcloud-firewall.service", "detcloud-agent.service"]
    unit = (tmp_path / "etc/systemd/system/detcloud-agent.service").read_text()
    assert f"--url {cloud.url} --cluster {CLUSTER} --pool gpus --name {cloud.machine.name} " in unit
    assert " --identity gcp --notices gce " in unit
    assert "DETCLOUD_PREEMPTION_SECONDS=30" in unit
    # Systemd stops units in the reverse order of their start. At a power-off the agent stops before
    # network, containers and metadata, and has more than the 20 s that it gives its trials.
    [after] = [line for line in unit.splitlines() if line.startswith("After=")]
    assert {"network-online.target", "docker.service", "detcloud-firewall.service"} <= set(
        after.removeprefix("After=").split()
    )
    assert "KillMode=process" in unit.splitlines()
    assert "TimeoutStopSec" not in unit
    assert STOP_SECONDS < SYSTEMD_STOP_SECONDS
    assert (tmp_path / "opt/detcloud/detcloud/agent/gcp/instance.py").is_file()
    token = cloud.machine.access_tokens[-1]
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or token.encode() not in path.read_bytes(), path
    # Each start of the machine runs the script again.
    assert boot(cloud, tmp_path) == (0, [])


def test_failed_boot_is_reported_with_a_proof_and_powers_off(cloud: Cloud, tmp_path: Path) -> None:
    status, commands = boot(cloud, tmp_path, fails="usermod")
    assert status == 1
    assert commands[-1] == "systemctl poweroff"
    [(path, body)] = cloud.reports
    assert path == f"/api/v1/instances/{cloud.machine.name}/boot-report"
    assert body.pop("resource_pool") == "gpus"
    report = body.pop("report")
    assert "detcloud: the boot failed: status 1 in line" in report
    assert "usermod -aG docker detcloud" in report
    with certificate_server(cloud.machine.keys) as url:
        verifier = GoogleIdentityVerifier(
            CLUSTER, cloud.machine.project, cloud.machine.account, GoogleCertificates(url)
        )
        digest = sha256(report.encode()).hexdigest()
        assert verifier.verify_proof(Proof(digest, body, BOOT_REPORT)).id == cloud.machine.name


def test_inaccessible_bucket_powers_the_machine_off(cloud: Cloud, tmp_path: Path) -> None:
    cloud.machine.account = ""
    status, commands = boot(cloud, tmp_path)
    assert status != 0
    assert commands[-1] == "systemctl poweroff"


def test_machine_of_a_cluster_elsewhere_gets_code_by_a_proof(cloud: Cloud, tmp_path: Path) -> None:
    status, commands = boot(cloud, tmp_path, elsewhere=True)
    assert status == 0, (tmp_path / "var/log/detcloud-boot.log").read_text()
    assert commands[-1] == "systemctl enable --now detcloud-agent.service"
    assert (tmp_path / "opt/detcloud/detcloud/agent/gcp/instance.py").is_file()
    [(path, body)] = cloud.requests
    assert path == f"/api/v1/instances/{cloud.machine.name}/agent-code"
    digest = agent_code().sha256
    assert (body.pop("resource_pool"), body.pop("sha256")) == ("gpus", digest)
    with certificate_server(cloud.machine.keys) as url:
        verifier = GoogleIdentityVerifier(
            CLUSTER, cloud.machine.project, cloud.machine.account, GoogleCertificates(url)
        )
        assert verifier.verify_proof(Proof(digest, body, AGENT_CODE)).id == cloud.machine.name
        # The proof for code does not enrol an agent.
        with pytest.raises(InvalidProof, match="was issued for another audience"):
            verifier.verify_proof(Proof(digest, body))
    # The machine requested no access token.
    assert cloud.machine.access_tokens == []


def test_code_with_a_wrong_digest_is_not_run(cloud: Cloud, tmp_path: Path) -> None:
    cloud.signed = b"something else"
    status, commands = boot(cloud, tmp_path, elsewhere=True)
    assert status != 0
    assert commands[-1] == "systemctl poweroff"
    assert not (tmp_path / "opt/detcloud/detcloud").exists()
