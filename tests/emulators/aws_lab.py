"""An account on AWS for pools of a server on own machines, which assumes a role as an IAM user."""

import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from tests.emulators.aws_remote import DEPLOYER, ask_aws
from tests.emulators.ec2.machine import Machine
from tests.emulators.ec2.region import Region
from tests.emulators.ec2.serving import Ec2Server, ec2_server
from tests.emulators.ec2_machines import connect_machines, issue_keys
from tests.emulators.machines import Machines
from tests.emulators.ministack import ACCOUNT, Ministack
from tests.emulators.token_services import token_services

_KEY = re.compile("<AccessKeyId>([^<]+)</AccessKeyId>")
_CREDENTIAL = re.compile("Credential=([^/]+)/")


@dataclass
class AwsLab:
    """An account on AWS.

    `user`: the ARN of the server's IAM user. `environment`: the variables of the server, with the
    user's keys and the addresses of the services. `roles`: the roles of issued sessions, by key.
    """

    aws: Ministack
    ec2: Ec2Server
    machines: Machines
    user: str
    environment: Mapping[str, str]
    roles: dict[str, str] = field(default_factory=dict)

    @property
    def region(self) -> Region:
        """The region of EC2."""
        return self.ec2.region

    def clients(self, service: str) -> Any:
        """Return the administrator's client of a service."""
        return self.ec2.client() if service == "ec2" else self.aws.client(service)

    def billed_machines(self) -> list[Machine]:
        """Return the machines that are billed."""
        return self.region.billed_machines()


@contextmanager
def aws_lab(
    folder: Path, aws: Ministack, user: str, launcher: str, subnets: Mapping[str, str]
) -> Iterator[AwsLab]:
    """Open an account with an IAM user `user`, who may assume the role `launcher` and nothing else.

    EC2 answers only sessions of this role and the administrator. The block's end terminates all
    machines.
    """
    region = Region(lambda: time.time_ns() // 1_000_000, running_ms=500, ending_ms=500)
    region.subnets.update({subnet: zone for zone, subnet in subnets.items()})
    roles: dict[str, str] = {}

    def pass_on(headers: Mapping[str, str], content: bytes) -> tuple[int, str]:
        status, text = ask_aws(aws, headers, content)
        form = dict(parse_qsl(content.decode()))
        if status == 200 and form.get("Action") == "AssumeRole":
            roles[_KEY.search(text)[1]] = form["RoleArn"]  # type: ignore[index]
        return status, text

    def lets_in(authorization: str) -> bool:
        match = _CREDENTIAL.search(authorization)
        return match is not None and (match[1] == DEPLOYER or roles.get(match[1]) == launcher)

    region.lets_in = lets_in
    with ExitStack() as stack:
        tokens = stack.enter_context(token_services())
        tokens.pass_on = pass_on
        ec2 = stack.enter_context(ec2_server(region, beats=True))
        issue_keys(aws, region)
        own = {"AWS_ENDPOINT_URL_STS": tokens.url}
        machines = connect_machines(ec2, folder, own)
        stack.callback(machines.end_all)
        keys = _make_user(aws, user, launcher)
        environment = {
            **own,
            **keys,
            "AWS_ENDPOINT_URL": aws.url,
            "AWS_ENDPOINT_URL_EC2": ec2.url,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        arn = f"arn:aws:iam::{ACCOUNT}:user/{user}"
        yield AwsLab(aws, ec2, machines, arn, environment, roles)


def _make_user(aws: Ministack, name: str, role: str) -> dict[str, str]:
    """Make an IAM user who may assume a role, and return variables with the user's keys."""
    iam = aws.client("iam")
    iam.create_user(UserName=name)
    statement = {"Effect": "Allow", "Action": "sts:AssumeRole", "Resource": role}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    iam.put_user_policy(UserName=name, PolicyName="launch", PolicyDocument=policy)
    key = iam.create_access_key(UserName=name)["AccessKey"]
    return {
        "AWS_ACCESS_KEY_ID": key["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"],
    }
