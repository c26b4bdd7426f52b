"""AWS Fargate on this machine: the tasks of an ECS cluster as processes.

Ministack's ECS accepts tasks and runs none. Each process here is what the task's definition
describes: its command, its variables with the overrides of the request, and keys of its role. Only
the image is missing, so a Python of this machine without the packages of the tests runs the
command. A port of this machine replaces port 443.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from lambdas.aws import relay_boot
from tests.emulators.machine_network import MachineNetwork
from tests.emulators.ministack import Ministack
from tests.emulators.server import free_port
from tests.patience import PROCESS_SECONDS_MAX

LOOK_SECONDS = 0.1
ADDRESS = "127.0.0.1"


class FargateHost:
    """The tasks of an ECS cluster. `start` and `end` begin and end the execution of tasks."""

    def __init__(
        self,
        aws: Ministack,
        cluster: str,
        folder: Path,
        address_url: str,
        network: MachineNetwork | None = None,
    ) -> None:
        self._aws, self._cluster, self._folder = aws, cluster, folder
        self._address_url, self._network = address_url, network
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin to execute tasks."""
        self._thread.start()

    def end(self) -> None:
        """End all tasks."""
        self._ended.set()
        self._thread.join(PROCESS_SECONDS_MAX)
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(PROCESS_SECONDS_MAX)
            finally:
                process.kill()

    def living(self) -> list[subprocess.Popen[bytes]]:
        """Return the processes of running tasks."""
        return [process for process in self.processes.values() if process.poll() is None]

    def log(self) -> str:
        """Return the logs of all tasks."""
        paths = sorted(self._folder.glob("task-*.log"))
        return "\n".join(path.read_text(errors="replace") for path in paths)

    def _run(self) -> None:
        ecs = self._aws.client("ecs")
        while not self._ended.wait(LOOK_SECONDS):
            running = set(ecs.list_tasks(cluster=self._cluster)["taskArns"])
            for task in running - self.processes.keys():
                self.processes[task] = self._execute(ecs, task)
            for task, process in self.processes.items():
                if task not in running and process.poll() is None:
                    process.terminate()
                if task in running and process.poll() is not None:
                    reason = "Essential container in task exited"
                    ecs.stop_task(cluster=self._cluster, task=task, reason=reason)

    def _execute(self, ecs: Any, task: str) -> subprocess.Popen[bytes]:
        [described] = ecs.describe_tasks(cluster=self._cluster, tasks=[task])["tasks"]
        definition = ecs.describe_task_definition(taskDefinition=described["taskDefinitionArn"])
        [container] = definition["taskDefinition"]["containerDefinitions"]
        [override] = described["overrides"]["containerOverrides"]
        assert override["name"] == container["name"]
        entries = (*container["environment"], *override["environment"])
        variables = {entry["name"]: entry["value"] for entry in entries}
        number = len(self.processes) + 1
        scratch = self._folder / f"task-{number}"
        scratch.mkdir()
        port = free_port()
        if self._network is not None:
            self._network.forward(port)
        program, *words = container["command"]
        assert program == "python3"
        with (self._folder / f"task-{number}.log").open("wb") as log:
            return subprocess.Popen(
                [_plain_python(), *words],
                env={
                    "PATH": os.environ["PATH"],
                    "TMPDIR": str(scratch),
                    **variables,
                    **assume_task_role(self._aws, definition["taskDefinition"]["taskRoleArn"]),
                    relay_boot.PORT: str(port),
                    relay_boot.USER: "",
                    relay_boot.ADDRESS_URL: self._address_url,
                },
                cwd=scratch,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )


def assume_task_role(aws: Ministack, role: str) -> Mapping[str, str]:
    """Return the variables with temporary keys of a task's role.

    The emulator's root assumes the role in the place of ECS. The conditions of the trust policy,
    which only ECS meets, are removed.
    """
    iam, name = aws.client("iam"), role.rpartition("/")[2]
    trust = iam.get_role(RoleName=name)["Role"]["AssumeRolePolicyDocument"]
    for statement in trust["Statement"]:
        statement.pop("Condition", None)
    iam.update_assume_role_policy(RoleName=name, PolicyDocument=json.dumps(trust))
    asked = {"RoleArn": role, "RoleSessionName": "task"}
    keys = aws.client("sts").assume_role(**asked)["Credentials"]
    return {
        "AWS_ACCESS_KEY_ID": keys["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": keys["SecretAccessKey"],
        "AWS_SESSION_TOKEN": keys["SessionToken"],
    }


def _plain_python() -> str:
    """Return the Python below the environment of the tests, which lacks the tests' packages."""
    return str(getattr(sys, "_base_executable", sys.executable))


class _AddressAnswer(BaseHTTPRequestHandler):
    """Answers the address of this machine, as AWS's service does."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"{ADDRESS}\n".encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def fargate(
    aws: Ministack, cluster: str, folder: Path, network: MachineNetwork | None = None
) -> Iterator[FargateHost]:
    """Execute the tasks of an ECS cluster until the block ends.

    The machines of `network` reach the ports of the tasks.
    """
    folder.mkdir()
    with ThreadingHTTPServer((ADDRESS, 0), _AddressAnswer) as addresses:
        threading.Thread(target=addresses.serve_forever, daemon=True).start()
        url = f"http://{ADDRESS}:{addresses.server_port}"
        host = FargateHost(aws, cluster, folder, url, network)
        host.start()
        try:
            yield host
        finally:
            host.end()
            addresses.shutdown()
