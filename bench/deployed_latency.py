"""Waits of a deployed cluster's trials for the next directive after a validation.

The stack is on the emulator with warm functions and a delivered stream; the agent is a script.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.figures import Row, Scale, progress
from bench.validation_latency import (
    CODE,
    CODE_SHA256,
    POOLS,
    ValidationAgent,
    latency_rows,
    submit_experiment,
)
from control_plane.objects.store import model_code_key
from infra.aws.bundle import EXTRAS, TARGETS, build_archive
from tests.emulators.deployment import account, stack
from tests.emulators.ministack import ministack
from tests.emulators.stream import Pump
from tests.emulators.throttling import ThrottledTables

P50_MS_MAX, P95_MS_MAX = 70, 150


def latency(scale: Scale) -> Iterator[Row]:
    """Run a search and yield the waits from a validation's report to the next directive."""
    with TemporaryDirectory(prefix="detcloud-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with progress("the functions' archive"):
            # Nothing is suggested here.
            archives = dict.fromkeys(EXTRAS, build_archive(TARGETS["emulator"], folder))
        with (
            ministack(folder) as aws,
            account(aws, archives, folder) as company,
        ):
            # This table is not throttled: functions reach the emulator directly.
            up = stack(replace(company, tables=ThrottledTables(aws.url)), "bench", POOLS)
            with progress("the configuration in force"):
                # Later ticks have no configuration to apply.
                up.invoke("tick", {})
            place = {"Bucket": up.outputs["objects"], "Key": str(model_code_key(CODE_SHA256))}
            aws.client("s3").put_object(**place, Body=CODE)
            pump = Pump(aws, up.outputs["table"]).running()
            with pump, progress(f"a search of {scale.latency_trials} trials"):
                agent = ValidationAgent(up.url, up.token)
                agent.work(submit_experiment(up.url, up.token, scale.latency_trials))
    yield from latency_rows(agent, "on the emulator", P50_MS_MAX, P95_MS_MAX)
