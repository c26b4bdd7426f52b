"""The simulated EC2 over HTTP: the API at /, and the metadata of a machine below the machine's id.

moto converts EC2's wire format from and to plain values by boto3's model. This package implements
the operations.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

import boto3
from botocore.config import Config
from moto.core.parse import PROTOCOL_PARSERS
from moto.core.serialize import SERIALIZERS
from moto.core.utils import get_service_model

from tests.emulators.ec2 import describing, launching, metadata, rules
from tests.emulators.ec2.machine import Ec2Error
from tests.emulators.ec2.region import Fault, Params, Region, Result
from tests.emulators.http_server import AnsweringHandler, serve_requests
from tests.patience import ANSWER_SECONDS_MAX

ACTIONS: Mapping[str, Callable[[Region, Params], Result]] = {
    "CreateFleet": launching.create_fleet,
    "CreateLaunchTemplate": launching.create_launch_template,
    "DeleteLaunchTemplate": launching.delete_launch_template,
    "DescribeCapacityReservations": describing.describe_capacity_reservations,
    "DescribeImages": describing.describe_images,
    "DescribeInstanceTypeOfferings": describing.describe_instance_type_offerings,
    "DescribeInstanceTypes": describing.describe_instance_types,
    "DescribeInstances": describing.describe_instances,
    "DescribeLaunchTemplates": describing.describe_launch_templates,
    "DescribeSecurityGroups": rules.describe_security_groups,
    "DescribeSpotInstanceRequests": describing.describe_spot_instance_requests,
    "DescribeSpotPriceHistory": describing.describe_spot_price_history,
    "DescribeSubnets": describing.describe_subnets,
    "DescribeVpcBlockPublicAccessExclusions": rules.describe_vpc_block_public_access_exclusions,
    "DescribeVpcBlockPublicAccessOptions": rules.describe_vpc_block_public_access_options,
    "GetAllowedImagesSettings": rules.get_allowed_images_settings,
    "GetEbsDefaultKmsKeyId": rules.get_ebs_default_kms_key_id,
    "GetConsoleOutput": describing.get_console_output,
    "RunInstances": launching.run_instances,
    "TerminateInstances": describing.terminate_instances,
}
_MODEL = get_service_model("ec2")


class ConnectionLost(Exception):
    """A call without an answer."""


class AnswerGarbled(Exception):
    """A call that is answered with an HTML page."""


@dataclass
class Ec2Server:
    """The API of `region` at `url`, for AWS_ENDPOINT_URL_EC2. A new region resets the account."""

    region: Region
    url: str

    def metadata_url(self, machine: str) -> str:
        """AWS_EC2_METADATA_SERVICE_ENDPOINT of a machine's own processes."""
        return f"{self.url}/{machine}"

    def client(self) -> Any:
        """Return a boto3 client without retries."""
        return boto3.client(
            "ec2",
            endpoint_url=self.url,
            region_name=self.region.name,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            config=Config(retries={"total_max_attempts": 1}, read_timeout=ANSWER_SECONDS_MAX),
        )


@contextmanager
def ec2_server(region: Region, *, beats: bool = False) -> Iterator[Ec2Server]:
    """Serve a region on a free port.

    `beats`: hooks are called periodically, also without calls.
    """

    class Handler(_Handler):
        pass

    account = Handler.account = Ec2Server(region, "")
    tend = (lambda: account.region.tend()) if beats else None
    with serve_requests(Handler, tend=tend) as address:
        account.url = f"http://{address}"
        yield account


def call(region: Region, action: str, params: Params) -> Result:
    """Carries a call out. Raises Ec2Error, ConnectionLost, AnswerGarbled."""
    with region.lock:
        region.calls.append(action)
        region.tend()
        faults = region.faults[action]
        fault = faults.popleft() if faults else None
        if fault is not None and not fault.carried_out:
            raise _fault_error(fault)
        if action not in ACTIONS:
            raise Ec2Error("InvalidAction", f"The action {action} is not valid for this service.")
        if text := region.denies(action, params):
            raise Ec2Error("UnauthorizedOperation", text)
        result = ACTIONS[action](region, params)
        if fault is not None:
            raise _fault_error(fault)
        region.tend()
        return result


def _fault_error(fault: Fault) -> Exception:
    return fault.error or (AnswerGarbled() if fault.garbled else ConnectionLost())


class _Handler(AnsweringHandler):
    """A connection of a client."""

    account: Ec2Server

    def do_POST(self) -> None:
        body = self.read_body().decode()
        values = dict(parse_qsl(body, keep_blank_values=True))
        action = values["Action"]
        operation = _MODEL.operation_model(action)
        request: Any = {
            "values": values,
            "headers": {},
            "body": body,
            "url_path": "/",
            "method": "POST",
        }
        parsed = PROTOCOL_PARSERS["ec2"](operation).parse(request)
        serializer = SERIALIZERS["ec2"](operation)
        try:
            if not self.account.region.lets_in(self.headers.get("Authorization", "")):
                raise Ec2Error("AuthFailure", "AWS was not able to validate the credentials")
            status, found = 200, serializer.serialize(call(self.account.region, action, parsed))
        except Ec2Error as error:
            status, found = error.status, serializer.serialize(error)
        except ConnectionLost:
            self.close_connection = True
            return
        except AnswerGarbled:
            self.answer(200, b"<html><body>Sign in<br></html>", {"Content-Type": "text/html"})
            return
        text = found["body"]
        content = text if isinstance(text, bytes) else text.encode()
        self.answer(status, content, {"Content-Type": "text/xml"})

    def do_GET(self) -> None:
        self._metadata()

    def do_PUT(self) -> None:
        self._metadata()

    def _metadata(self) -> None:
        name, _, path = self.path.lstrip("/").partition("/")
        headers = {key.lower(): value for key, value in self.headers.items()}
        region, reply = self.account.region, metadata.Reply(404)
        with region.lock:
            region.tend()
            machine = region.machines.get(name)
            if machine is not None and machine.state(region.clock()) != "terminated":
                reply = metadata.answer(region, machine, self.command, path, headers)
        self.answer(reply.status, reply.body, {"Content-Type": reply.kind})
