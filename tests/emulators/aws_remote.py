"""The remote AWS account of a cluster whose functions run on the emulators of Google Cloud.

The account has EC2, machines, and a token service that opens a role for Google's tokens.
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

# The deployer's access key in tests.
DEPLOYER = "test"
ISSUER = "accounts.google.com"
ACTION = "sts:AssumeRoleWithWebIdentity"


@dataclass
class SimulatedAwsRemote:
    """A remote account on AWS.

    `aws` and `ec2`: the account's services and EC2. `machines`: processes of instances. `tokens`:
    the service that issues sessions of roles. `keys`: Google's signing keys. `metadata`: the
    metadata of the launching function. `environment`: variables that lead functions to these
    services.
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
        """Return the deployer's client of a service."""
        return self.ec2.client() if service == "ec2" else self.aws.client(service)

    def billed_machines(self) -> list[Machine]:
        """Return the machines that are billed."""
        return self.region.billed_machines()


def make_remote_network(aws: Ministack, name: str) -> dict[str, Any]:
    """Make a subnet and a security group, and return the settings of a remote account for both."""
    ec2, zone = aws.client("ec2"), f"{REGION}a"
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    made = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.0.0/24", AvailabilityZone=zone)["Subnet"]
    group = ec2.create_security_group(GroupName=name, Description="d", VpcId=vpc)["GroupId"]
    return {"subnets": {zone: made["SubnetId"]}, "securityGroup": group}


def run_trust_script(folder: Path, clients: Clients, script: str, *words: str) -> None:
    """Run a script with `words` that makes or removes a remote account. Fail the test if the script
    fails.
    """
    folder.mkdir(exist_ok=True)
    done, _ = run_aws_script(folder, clients, script, *words)
    assert done.returncode == 0, done.stderr


@contextmanager
def aws_remote(
    folder: Path, aws: Ministack, remote: AwsRemoteAccount, account: str
) -> Iterator[SimulatedAwsRemote]:
    """Open a remote account for functions of the service account `account`.

    Only sessions of the launcher role and the deployer may call EC2. The block's end terminates all
    machines.
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
        tokens.pass_on = lambda headers, content: ask_aws(aws, headers, content)
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
    """Return whether a role's trust policy accepts a token that Google signed.

    AWS's `aud` is the token's authorized party, and `oaud` is the token's audience.
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


def ask_aws(aws: Ministack, headers: Mapping[str, str], content: bytes) -> tuple[int, str]:
    """Send a call on to AWS with its signed headers, and return the answer's status and text."""
    request = urllib.request.Request(f"{aws.url}/", content, dict(headers), method="POST")
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS_MAX) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
