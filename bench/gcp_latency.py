"""How long a trial of a cluster on Google Cloud waits for its next directive after a validation:
the stack on the emulators of Firestore and Cloud Storage, its functions in processes of their own
and warm, called by the events of commits, and an agent that is a script.
"""

from collections.abc import Iterator
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
from tests.emulators.deployment_gcp import deployment
from tests.emulators.fake_gcs import fake_gcs
from tests.emulators.firestore import firestore

P50_MS_MAX, P95_MS_MAX = 150, 400
# Nothing is suggested here, nor deleted.
FUNCTIONS = ("api", "advance", "tick")


def gcp_latency(scale: Scale) -> Iterator[Row]:
    """A search whose every result is answered by an agent's one call, or by the next."""
    with TemporaryDirectory(prefix="detcloud-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with (
            firestore(folder) as databases,
            fake_gcs(folder) as gcs,
            deployment(databases, gcs, folder, "bench", POOLS, FUNCTIONS) as up,
        ):
            with progress("the configuration in force"):
                # The minute's tick is no part of it after that.
                up.tick()
            up.store_object("objects", str(model_code_key(CODE_SHA256)), CODE)
            with progress(f"a search of {scale.latency_trials} trials"):
                agent = ValidationAgent(up.url, up.token)
                agent.work(submit_experiment(up.url, up.token, scale.latency_trials))
    yield from latency_rows(agent, "on Google's emulators", P50_MS_MAX, P95_MS_MAX)
