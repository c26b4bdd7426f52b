"""The API of a deployed cluster, and its configuration."""

import hashlib
import os
import secrets
from dataclasses import replace
from functools import cache, partial
from urllib.parse import urlsplit

from fastapi import FastAPI

from control_plane.agents.aws import StsVendor
from control_plane.agents.aws_witness import AwsWitness
from control_plane.agents.logs import TrialLogs
from control_plane.agents.segments import stored
from control_plane.agents.service import AgentService
from control_plane.agents.spec import spec_builder
from control_plane.api.app import create_app
from control_plane.api.auth import Principal, Role, StaticTokens
from control_plane.api.configuration import apply, checked_difference
from control_plane.api.idempotency import nothing
from control_plane.api.services import Services
from control_plane.api.signing import Signer
from control_plane.api.token_table import TableTokens
from control_plane.config.pools import check_cluster
from control_plane.objects.store import Key as ObjectKey
from control_plane.state.table import Expect, Put
from detcloud import __version__
from lambdas.aws import client
from lambdas.clock import now_ms
from lambdas.deployed import APPLIED, engine, named, stores

CONFIGURATION = ObjectKey("config/cluster.yaml")
# Whoever deploys; the first token is theirs.
ADMINISTRATOR = "administrator"


def app() -> FastAPI:
    """The application behind API Gateway."""
    witness = AwsWitness(named("CLUSTER"), named("INSTANCE_ROLE"), _token_service())
    vendor = StsVendor(client("sts"), named("STORAGE_ROLE"))
    return create_app(replace(services(), witness=witness, vendor=vendor))


@cache
def services() -> Services:
    """What handlers work with, but for what only the API's role may do."""
    table, cluster = engine().table, named("CLUSTER")
    objects, checkpoints = stores().objects, stores().checkpoints
    first = Principal(ADMINISTRATOR, Role.ADMIN)
    url = named("API_URL")
    return Services(
        tokens=TableTokens(table, StaticTokens({named("ADMIN_SHA256"): first}), now_ms),
        objects=objects,
        # Objects are signed for by their bucket; nothing is by us.
        signer=Signer(secrets.token_bytes(32)),
        now_ms=now_ms,
        hosts=frozenset({urlsplit(url).hostname or ""}),
        engine=engine(),
        agents=AgentService(
            engine(),
            spec_builder(cluster, checkpoints),
            TrialLogs(table, objects).store,
            partial(stored, objects),
        ),
        cluster_id=cluster,
        version=__version__,
        checkpoints=checkpoints,
        providers=frozenset({"aws"}),
        suggests=True,
    )


def configuration_applied() -> None:
    """Makes the cluster configuration that was deployed true.

    Raises ConfigInvalid, ApiError: it has problems, or cannot be applied.
    """
    wanted = named("CONFIG_SHA256")
    content = b"".join(stores().objects.get(CONFIGURATION))
    if hashlib.sha256(content).hexdigest() != wanted:
        # The object and the functions change one after the other.
        return
    row = engine().table.get(APPLIED)
    config = check_cluster(content.decode())
    apply(services(), checked_difference(services(), config), ADMINISTRATOR, nothing)
    revision = row.revision if row else 0
    done = Put(APPLIED, revision + 1, wanted.encode(), revision or Expect.ABSENT)
    engine().table.commit((done,))


def _token_service() -> str:
    region = os.environ["AWS_REGION"]
    given = os.environ.get("AWS_ENDPOINT_URL_STS") or os.environ.get("AWS_ENDPOINT_URL")
    return given or f"https://sts.{region}.amazonaws.com"
