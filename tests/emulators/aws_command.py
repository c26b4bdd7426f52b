"""A stand-in for AWS's command line that calls boto3 in this process.

Each word of a command is checked against the operation's parameters. Starting boto3 for each
command would be too slow.
"""

import json
import os
import re
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jmespath
from botocore.exceptions import ClientError

from infra.aws.account_facts import Clients
from tests.patience import PROCESS_SECONDS_MAX

_PROGRAM = """#!{python} -SE
import json, socket, sys
with socket.create_connection(("127.0.0.1", {port})) as line:
    line.sendall((json.dumps(sys.argv[1:]) + "\\n").encode())
    with line.makefile() as answer:
        said = json.load(answer)
sys.stdout.write(said["out"])
sys.exit(said["error"])
"""


def run_aws_script(
    folder: Path, clients: Clients, script: str, *words: str
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run a script with `words` as arguments; clients of services carry out the script's commands.
    Return the process and the successful operations.
    """
    program, carried_out = folder / "aws", list[str]()
    with _answering(clients, carried_out) as port:
        program.write_text(_PROGRAM.format(python=sys.executable, port=port))
        program.chmod(0o755)
        done = subprocess.run(
            ["bash", "-s", "--", *words],
            input=script,
            env={"PATH": f"{folder}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=PROCESS_SECONDS_MAX,
            check=False,
        )
    return done, carried_out


@contextmanager
def _answering(clients: Clients, carried_out: list[str]) -> Iterator[int]:
    """Serve a port that carries out commands and appends the operations to `carried_out`. Yield the
    port.
    """

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            result: dict[str, Any] = {"out": "", "error": None}
            words = json.loads(self.rfile.readline())
            try:
                result["out"] = _carry_out(clients, words)
                carried_out.append(words[1])
            except ClientError as error:
                result["error"] = str(error)
            self.wfile.write(json.dumps(result).encode())

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def _carry_out(clients: Clients, words: Sequence[str]) -> str:
    """Carry out a command of a service and return the command's output."""
    service, operation, *rest = words
    given: dict[str, list[str]] = {}
    for word in rest:
        if word.startswith("--"):
            values = given.setdefault(word[2:], [])
        else:
            values.append(word)
    query = given.pop("query", [""])[0]
    for name in ("output", "region"):
        given.pop(name, None)
    request = {
        "".join(map(str.capitalize, flag.split("-"))): _parameter(flag, values)
        for flag, values in given.items()
    }
    answer = getattr(clients(service), operation.replace("-", "_"))(**request)
    value = jmespath.search(query, answer) if query else None
    text = "\t".join(value) if isinstance(value, list) else str(value)
    return f"{text}\n" if query else ""


def _parameter(flag: str, values: list[str]) -> Any:
    """Return the value of a parameter, which may be written in the shorthand for lists."""
    if flag == "tags":
        return [dict(pair.split("=", 1) for pair in value.split(",")) for value in values]
    if flag == "filters":
        pairs = [re.fullmatch("Name=([^,]+),Values=(.+)", value) for value in values]
        return [{"Name": match[1], "Values": match[2].split(",")} for match in pairs if match]
    return values if flag.endswith("-ids") else values[0]
