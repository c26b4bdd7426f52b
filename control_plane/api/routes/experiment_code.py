"""Routes of an experiment's model code, file by file.

Callers that cannot follow a redirect to a bucket use these routes. A single thread reads archives,
apart from the threads of other requests, because a maliciously built archive takes seconds. Cached
answers do not wait for this thread.
"""

from collections.abc import Callable
from typing import Annotated, TypeVar

from anyio import to_thread
from fastapi import Query
from fastapi.concurrency import run_in_threadpool

from control_plane.access.principals import USER_ROLES
from control_plane.api.dependencies import ExperimentId, PageParameters, ServicesParameter
from control_plane.api.loop_limiter import LoopLimiter
from control_plane.api.route_guards import guarded_router, require_role
from control_plane.queries.experiment_code import (
    CodeFileAnswer,
    CodeTextAnswer,
    code_digest,
    list_code_files,
    read_code_file,
)
from control_plane.queries.pages import Page
from control_plane.services import Services
from detcloud.shared.archive_limits import NAME_BYTES_MAX

router = guarded_router("experiment-code")

_passes = LoopLimiter("passes over model code", 1)

Shown = TypeVar("Shown")


@router.get("/experiments/{experiment_id}/code")
@require_role(*USER_ROLES)
async def list_code(
    experiment_id: ExperimentId, services: ServicesParameter, page: PageParameters
) -> Page[CodeFileAnswer]:
    """List the files of an experiment's model code by path. The files of a folder stay together.

    Errors: `not_found` if the experiment does not exist or has no stored model code. `conflict` if
    the archive is damaged or breaks a rule. `invalid` for a cursor of another list.
    """
    return await _answer(
        services, experiment_id, None, lambda digest: list_code_files(services, digest, page)
    )


@router.get("/experiments/{experiment_id}/code/file")
@require_role(*USER_ROLES)
async def read_file(
    experiment_id: ExperimentId,
    services: ServicesParameter,
    path: Annotated[str, Query(min_length=1, max_length=NAME_BYTES_MAX)],
) -> CodeTextAnswer:
    """Read the first 1 MiB of a text file of the model code.

    `text` is null for a file that is not text. Download the whole archive for such files and for
    longer texts. Errors: `not_found` if the experiment, its model code or the path does not exist.
    `conflict` if the archive is damaged or breaks a rule.
    """
    return await _answer(
        services, experiment_id, path, lambda digest: read_code_file(services, digest, path)
    )


async def _answer(
    services: Services, experiment_id: int, path: str | None, show: Callable[[str], Shown]
) -> Shown:
    digest = await run_in_threadpool(code_digest, services, experiment_id)
    is_kept = services.code_archives.has_kept(digest, path)
    limiter = None if is_kept else _passes.limiter()
    return await to_thread.run_sync(show, digest, limiter=limiter)
