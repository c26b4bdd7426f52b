"""A long-used cluster for the figures of the web page.

In addition to the data of `bench.reading`, the cluster has a queue, machines, a log, media and
models.
"""

from dataclasses import replace
from uuid import uuid4

from bench.figures import Scale, progress
from bench.filling import services_to_fill
from bench.media_filling import write_media
from bench.reading import FilledTable, fill
from bench.serving import USER
from control_plane.access.principals import Principal, Role
from control_plane.actors import addresses
from control_plane.actors.messages.agent import AgentEnrolled
from control_plane.actors.messages.pool import PoolConfigured
from control_plane.agents.logs import TrialLogs
from control_plane.agents.sessions import LogChunk
from control_plane.queries.model_records import ModelRecord
from control_plane.queries.pool import load_settings
from control_plane.services import Services
from control_plane.usecases.models import create_model
from control_plane.usecases.submission import (
    CheckedSubmission,
    Submission,
    check_submission,
    submit_experiment,
)
from detcloud.shared.event_parts import TENSORBOARD_FOLDER
from local_cluster.embedded_cluster import POOL
from local_cluster.home import HomeFolder

BEGAN_MS = 1_700_000_000_000
LINES_PER_CHUNK = 500
# A single experiment holds the only machine with the label; all others wait.
QUEUED_CONFIG = """
name: waits for a machine
entrypoint: python train.py
searcher: {name: single, metric: loss, max_length: {batches: 1000}}
hyperparameters: {lr: 0.1}
resources: {agent_label: busy}
"""


def fill_cluster(home: HomeFolder, scale: Scale) -> FilledTable:
    """Fill the folder of a stopped cluster."""
    with progress(f"{scale.reading_trials:,} trials, {scale.reading_values:,} values twice"):
        filled = fill(home, scale.reading_trials, scale.reading_values)
    with services_to_fill(home) as services:
        _fill_views(services, filled, scale)
    _fill_media(home, filled, scale.page_media_steps)
    with progress(f"{scale.page_experiments:,} experiments in the queue"):
        _fill_queue(home, filled.code, scale.page_experiments)
    return filled


def _fill_views(services: Services, filled: FilledTable, scale: Scale) -> None:
    with progress(f"a log of {scale.page_log_lines:,} lines"):
        _write_log(services, filled.long_trial, scale.page_log_lines)
    with progress(f"{scale.page_models:,} models"):
        for number in range(scale.page_models):
            named = ModelRecord(f"model {number:05d}", USER, BEGAN_MS + number, BEGAN_MS + number)
            create_model(services.table, named, lambda model, revision: ())
    # Agents come before the queue, because each joining agent makes the pool plan for the whole
    # queue.
    with progress(f"{scale.agents:,} agents"):
        for number in range(scale.agents):
            slots = ((0, "cuda", f"GPU-{number}", "GPU"),)
            services.agents.enrol(f"agent-{number:04d}", POOL, slots, "1")
    busy = ((0, "cuda", "GPU-0", "GPU"),)
    services.agents.begin_session(AgentEnrolled("busy", POOL, busy, "1", label="busy"))


def _fill_media(home: HomeFolder, filled: FilledTable, steps: int) -> None:
    """Write media of the long trial, which is in the experiment after the one of many trials."""
    events = home.checkpoints / TENSORBOARD_FOLDER / str(filled.experiment + 1)
    with progress(f"media of {steps} steps"):
        write_media(events / str(filled.long_trial), steps)


def _fill_queue(home: HomeFolder, code: str, count: int) -> None:
    """Create waiting experiments with the use case of user requests.

    The experiments differ only in names, so that a single check of the configuration is enough. The
    pool is draining meanwhile and receives no mail, so that the pool plans only once.
    """
    address = addresses.pool(POOL)
    with services_to_fill(home, follows_commands=False) as services:
        asked = Submission(config=QUEUED_CONFIG, model_code=code)
        checked = check_submission(services, asked, Principal(USER, Role.ADMIN))
        settings = load_settings(services, POOL)
        closed = PoolConfigured(POOL, replace(settings, draining=True))
        services.engine.execute_command(address, closed)
        for number in range(count):
            one = _submission_of_now(checked, number, services.now_ms())
            submit_experiment(services, one, USER, lambda reply: ())
    with services_to_fill(home) as services:
        engine = services.engine
        while engine.has_mail(address):
            engine.advance_until_idle([address])
        engine.execute_command(address, PoolConfigured(POOL, settings))
        engine.advance_until_idle([address])


def _submission_of_now(checked: CheckedSubmission, number: int, now_ms: int) -> CheckedSubmission:
    message = checked.message
    settings = replace(message.settings, submitted_ms=now_ms)
    job = replace(message.job, submitted_ms=now_ms)
    name = f"{message.name} {number}"
    after = replace(message, name=name, job_id=str(uuid4()), settings=settings, job=job)
    return replace(checked, message=after)


def _write_log(services: Services, trial_id: int, lines: int) -> None:
    logs = TrialLogs(services.table, services.objects)
    offset = 0
    for first in range(0, lines, LINES_PER_CHUNK):
        numbers = range(first, min(lines, first + LINES_PER_CHUNK))
        text = b"".join(b"[rank=0] INFO: line %d of what it says of itself\n" % n for n in numbers)
        chunk = LogChunk(f"{trial_id}.1", offset, text, marks=((offset, BEGAN_MS + first),))
        services.table.commit([logs.store_chunk(trial_id, chunk)])
        offset += len(text)
