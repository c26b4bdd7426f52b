"""The image that a new machine pulls before the cluster assigns the first trial.

The image is a guess from the pool's jobs. A wrong guess costs only traffic: the agent stops the
pull when a trial with another image arrives.
"""

from collections import Counter

from control_plane.actors.job_row import decode_job, jobs_partition
from control_plane.agents.spec import parse_stored_config
from control_plane.config.images import images_to_run
from control_plane.engine.experiment_reader import Defined
from control_plane.services import Services

# The first jobs of the pool are representative, and bound the reads of an enrolment.
JOBS_READ_MAX = 8


def find_likely_image(services: Services, pool: str, label: str, device: str) -> str:
    """Return the image in which most of the pool's first jobs run, or "" without a known image.

    Of equally frequent images, choose the image of the oldest job. Ignore jobs for agents with
    another label. Ignore images whose pull needs a login, because the agent gets logins only for
    its trials.

    Args:
        device: the kind of the machine's slots, such as `cuda`.

    Raises:
        TableError: the state table failed.
        ValueError: a stored row cannot be decoded.
    """
    rows = services.table.query(jobs_partition(pool), " ", "\x7f", limit=JOBS_READ_MAX).rows
    numbers = [int(row.key.sort) for row in rows if decode_job(row.body).label == label]
    if not numbers:
        return ""
    loaded, _ = services.experiments.read_experiments(numbers)
    images = (_public_image(services, pair, device) for pair in loaded if pair is not None)
    # The counter keeps the order of the jobs, and most_common is stable.
    most = Counter(image for image in images if image).most_common(1)
    return most[0][0] if most else ""


def _public_image(services: Services, defined: Defined, device: str) -> str:
    """Return the image of an experiment's trials on a device, or "" if the pull needs a login."""
    environment = parse_stored_config(defined[1]).environment
    image = images_to_run(environment.image).get(device)
    grants = services.trial_grants
    needs_login = environment.registry_auth is not None or (
        image is not None and grants is not None and grants.gives_login(image)
    )
    return "" if image is None or needs_login else image
