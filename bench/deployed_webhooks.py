"""The time from a change to the receipt of the webhook, in a cluster that is deployed to AWS.

The stack is on the emulator with warm functions and a delivered stream.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.figures import Row, Scale, progress
from bench.validation_latency import CODE, CODE_SHA256, POOLS
from bench.webhooks import ALLOWED, CONFIG, receipt_rows, receipt_waits_ms
from control_plane.objects.store import model_code_key
from detcloud.shared.http import Transport
from infra.aws.bundle import EXTRAS, TARGETS, build_archive
from tests.emulators.deployment import account, stack
from tests.emulators.ministack import ministack
from tests.emulators.stream import Pump
from tests.emulators.throttling import ThrottledTables

P95_MS_MAX = 5_000
WARMING = 5
"""The first changes, which start the functions and do not count."""


def webhook_latency(scale: Scale) -> Iterator[Row]:
    """Pause and activate an experiment, and yield the waits for the receipt of each change."""
    with TemporaryDirectory(prefix="detcloud-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with progress("the functions' archive"):
            # Nothing is suggested here.
            archives = dict.fromkeys(EXTRAS, build_archive(TARGETS["emulator"], folder))
        with ministack(folder) as aws, account(aws, archives, folder) as company:
            tables = ThrottledTables(aws.url)
            up = stack(replace(company, tables=tables), "bench", POOLS + ALLOWED)
            with progress("the configuration in force"):
                up.invoke("tick", {})
            place = {"Bucket": up.outputs["objects"], "Key": str(model_code_key(CODE_SHA256))}
            aws.client("s3").put_object(**place, Body=CODE)
            pump = Pump(aws, up.outputs["table"]).running()
            with pump, progress(f"{scale.deployed_changes} changes"):
                api = Transport(up.url, up.token)
                body = {"config": json.dumps(CONFIG), "model_code": CODE_SHA256}
                experiment = api.request("POST", "/api/v1/experiments", body)["id"]
                waits = receipt_waits_ms(api, experiment, WARMING + scale.deployed_changes)
    yield from receipt_rows(waits[WARMING:], "warm, on the emulator", P95_MS_MAX)
