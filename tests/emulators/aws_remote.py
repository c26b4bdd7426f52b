"""The remote account on AWS of a cluster whose functions run on the emulators of Google Cloud: an
EC2, its machines, and a token service that opens a role for tokens of Google's, as AWS's does.
"""

import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError
from google.auth import jwt

from infra.aws.account_facts import Clients
from infra.aws.remote_account import AwsRemoteAccount
from tests.emulators.aws_command import run_aws_script
from tests.emulators.ec2.machine import Machine
from tests.emulators.ec2.region import Region
from tests.emulators.ec2.serving import Ec2Server, ec2_server
from tests.emulators.ec2_machines import connect_machines, issue_keys
from tests.emulators.gce.metadata import MachineMetadata, metadata_server
from tests.emulators.google_keys import GoogleKeys
from tests.emulators.machines import Machines
from tests.emulators.ministack import REGION, Ministack
from tests.emulators.policy_reader import allows
from tests.emulators.token_services import TokenServices, token_services
from tests.patience import ANSWER_SECONDS_MAX

# The key of whoever deploys, with which clients of tests sign.
DEPLOYER = "test"
ISSUER = "accounts.google.com"
ACTION = "sts:AssumeRoleWithWebIdentity"


@dataclass
class SimulatedAwsRemote:
    """A remote account: an account of AWS and its EC2, the processes of its `machines`, the service
    that gives `tokens` for roles, Google's `keys`, the `metadata` of the function that launches,
    and the variables by which functions find all of it.
    """

    aws: Ministack
    ec2: Ec2Server
    machines: Machines
    tokens: TokenServices
    keys: GoogleKeys
    metadata: MachineMetadata
    environment: Mapping[str, str]

    @property
    def region(self) -> Region:
        """The region of EC2."""
        return self.ec2.region

    def clients(self, service: str) -> Any:
        """Return the client of a service, for whoever deploys."""
        return self.ec2.client() if service == "ec2" else self.aws.client(service)

    def billed_machines(self) -> list[Machine]:
        """Return the machines that are billed."""
        return self.region.billed_machines()


def make_remote_network(aws: Ministack, name: str) -> dict[str, Any]:
    """Make a subnet and a security group; return them as settings of a remote account have them."""
    ec2, zone = aws.client("ec2"), f"{REGION}a"
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    made = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.0.0/24", AvailabilityZone=zone)["Subnet"]
    group = ec2.create_security_group(GroupName=name, Description="d", VpcId=vpc)["GroupId"]
    return {"subnets": {zone: made["SubnetId"]}, "securityGroup": group}


def run_trust_script(folder: Path, clients: Clients, script: str, *words: str) -> None:
    """Run a script that makes or removes a remote account, with these words."""
    folder.mkdir(exist_ok=True)
    done, _ = run_aws_script(folder, clients, script, *words)
    assert done.returncode == 0, done.stderr


@contextmanager
def aws_remote(
    folder: Path, aws: Ministack, remote: AwsRemoteAccount, account: str
) -> Iterator[SimulatedAwsRemote]:
    """Open a remote account that was made in an account, for functions of the service account
    `account`: who has a session of the role that launches may call EC2, and who deploys, and nobody
    else. All machines end with it.
    """
    subnets = remote.variables()["network"]["subnets"]
    region = Region(lambda: time.time_ns() // 1_000_000, running_ms=500, ending_ms=500)
    region.subnets.update({subnet: zone for zone, subnet in subnets.items()})
    keys = GoogleKeys()
    metadata = MachineMetadata("functions", keys, account=account)

    with ExitStack() as stack:
        tokens = stack.enter_context(token_services())
        tokens.trusts = lambda role, token: is_trusted(aws, keys, role, token)
        region.lets_in = lambda name: tokens.has_session(name) or f"Credential={DEPLOYER}/" in name
        tokens.pass_on = lambda headers, content: _ask_aws(aws, headers, content)
        ec2 = stack.enter_context(ec2_server(region, beats=True))
        issue_keys(aws, region)
        own = {"AWS_ENDPOINT_URL_STS": tokens.url}
        machines = connect_machines(ec2, folder, own)
        stack.callback(machines.end_all)
        environment = {
            **own,
            "AWS_ENDPOINT_URL": aws.url,
            "AWS_ENDPOINT_URL_EC2": ec2.url,
            "GCE_METADATA_HOST": stack.enter_context(metadata_server(metadata)),
        }
        yield SimulatedAwsRemote(aws, ec2, machines, tokens, keys, metadata, environment)


def is_trusted(aws: Ministack, keys: GoogleKeys, role: str, token: str) -> bool:
    """Whether a role's trust lets in who shows a token that Google signed. What AWS calls `aud` is
    who asked for the token, where it says that, and `oaud` then what it was made for.
    """
    try:
        claims = jwt.decode(token, certs=keys.certificates)
        name = role.rpartition("/")[2]
        trust = aws.client("iam").get_role(RoleName=name)["Role"]["AssumeRolePolicyDocument"]
    except (ValueError, ClientError):
        return False
    principals = [item.get("Principal") for item in trust["Statement"]]
    context = {
        f"{ISSUER}:aud": claims["azp"],
        f"{ISSUER}:oaud": claims["aud"],
        f"{ISSUER}:sub": claims["sub"],
    }
    return principals == [{"Federated": ISSUER}] and allows(trust, ACTION, "*", context)


def _ask_aws(aws: Ministack, headers: Mapping[str, str], content: bytes) -> tuple[int, str]:
    """Return AWS's answer to a call that came here, under the name that it was signed for."""
    request = urllib.request.Request(f"{aws.url}/", content, dict(headers), method="POST")
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS_MAX) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
