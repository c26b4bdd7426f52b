"""A stand-in for AWS's command line that makes its calls through boto3: it checks each word of a
command against the operation's own parameters.
"""

import os
import subprocess
import sys
from pathlib import Path

from tests.emulators.ministack import REGION, Ministack
from tests.patience import PROCESS_SECONDS_MAX

_PROGRAM = """#!{python}
import sys
import boto3, botocore.exceptions
service, operation, *words = sys.argv[1:]
given = dict(zip(words[::2], words[1::2]))
query, form = given.pop("--query", ""), given.pop("--output", "")
given.pop("--region", "")
client = boto3.client(service, endpoint_url={url!r}, region_name={region!r})
request = {{}}
for flag, value in given.items():
    name = "".join(map(str.capitalize, flag.lstrip("-").split("-")))
    if name == "Tags":
        value = [dict(pair.split("=", 1) for pair in value.split(","))]
    request[name] = value
try:
    answer = getattr(client, operation.replace("-", "_"))(**request)
except botocore.exceptions.ClientError as error:
    sys.exit(str(error))
if query:
    print(answer[query])
with open({log!r}, "a") as log:
    log.write(operation + "\\n")
"""


def run_aws_script(
    folder: Path, aws: Ministack, script: str, *words: str
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run a script with these words; its outcome, and the operations that were carried out."""
    log, program = folder / "log", folder / "aws"
    log.write_text("")
    program.write_text(
        _PROGRAM.format(python=sys.executable, url=aws.url, region=REGION, log=str(log))
    )
    program.chmod(0o755)
    keys = {"AWS_ACCESS_KEY_ID": aws.key, "AWS_SECRET_ACCESS_KEY": aws.secret}
    done = subprocess.run(
        ["bash", "-s", "--", *words],
        input=script,
        env={"PATH": f"{folder}:{os.environ['PATH']}", **keys},
        capture_output=True,
        text=True,
        timeout=PROCESS_SECONDS_MAX,
        check=False,
    )
    return done, log.read_text().splitlines()
