"""The image that a new machine pulls before the cluster assigns the first trial.

The image is a guess from the pool's jobs. A wrong guess costs only traffic: the agent stops the
pull when a trial with another image arrives. The machine gets the login of the ordinary pull, but
only for the guessed image, and only while the image is the guess.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from control_plane.actors.job_row import decode_job, jobs_partition
from control_plane.agents.spec import parse_stored_config, registry_login
from control_plane.agents.trial_grants import TrialGrants
from control_plane.config.images import images_to_run
from control_plane.engine.experiment_reader import Defined
from control_plane.services import Services
from detcloud.shared.registries import is_login_for

# The first jobs of the pool are representative, and bound the reads of an enrolment.
JOBS_READ_MAX = 8


@dataclass(frozen=True, slots=True)
class LikelyImage:
    """The image in which most of the pool's first jobs run."""

    name: str
    configured_login: dict[str, str] | None = field(default=None, repr=False)
    """The `registry_auth` of a job's configuration for the image's registry, with the secrets."""
    grants: TrialGrants | None = field(default=None, repr=False)
    """The issuer of a login, if the ordinary pull would get a login of the cluster's cloud."""

    @property
    def needs_login(self) -> bool:
        """Whether the ordinary pull uses a login."""
        return self.configured_login is not None or self.grants is not None

    def issue_login(self, agent: str) -> dict[str, str]:
        """Return the login of the ordinary pull: the configured login, else a new login.

        The fields are those of `registry_auth`. The image must need a login. Raises OSError if the
        cloud does not answer.
        """
        if self.configured_login is not None:
            return self.configured_login
        assert self.grants is not None, self.name
        # The name of a session of AWS has at most 64 characters.
        issued = self.grants.issue_login(f"pull-{agent}"[:64], self.name)
        return {"username": issued.username, "password": issued.password}


def find_likely_image(services: Services, pool: str, label: str, device: str) -> LikelyImage | None:
    """Return the image in which most of the pool's first jobs run.

    Return None without a known image. Of equally frequent images, choose the image of the oldest
    job. Ignore jobs for agents with another label. Of jobs with the same image, the login of the
    oldest job that has a login counts.

    Args:
        device: the kind of the machine's slots, such as `cuda`.

    Raises:
        TableError: the state table failed.
        ValueError: a stored row cannot be decoded.
    """
    rows = services.table.query(jobs_partition(pool), " ", "\x7f", limit=JOBS_READ_MAX).rows
    numbers = [int(row.key.sort) for row in rows if decode_job(row.body).label == label]
    if not numbers:
        return None
    loaded, _ = services.experiments.read_experiments(numbers)
    pairs = (pair for pair in loaded if pair is not None)
    images = list(_images(services, pairs, device))
    # The counter keeps the order of the jobs, and most_common is stable.
    most = Counter(image.name for image in images).most_common(1)
    if not most:
        return None
    same = [image for image in images if image.name == most[0][0]]
    return next((image for image in same if image.needs_login), same[0])


def _images(
    services: Services, experiments: Iterator[Defined], device: str
) -> Iterator[LikelyImage]:
    """Yield the image of each experiment's trials on a device, with the login of the pull.

    Experiments without an image for the device are skipped.
    """
    for _, definition in experiments:
        config = parse_stored_config(definition)
        name = images_to_run(config.environment.image).get(device)
        if name is None:
            continue
        login = registry_login(config)
        # The ordinary pull leaves out a login for another registry (agent/docker/images.py).
        if login is not None and is_login_for(login.get("server", ""), name):
            yield LikelyImage(name, configured_login=login)
            continue
        grants = services.trial_grants
        is_granted = grants is not None and grants.gives_login(name)
        yield LikelyImage(name, grants=grants if is_granted else None)
