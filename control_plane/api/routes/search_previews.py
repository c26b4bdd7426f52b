"""The route that previews a search."""

from typing import Annotated

from pydantic import Field

from control_plane.access.principals import USER_ROLES
from control_plane.api.dependencies import ServicesParameter
from control_plane.api.owned_objects import only_own
from control_plane.api.request_body import RequestBody
from control_plane.api.route_guards import Caller, guarded_router, require_role
from control_plane.api.routes.experiments import CONFIG_CHARACTERS_MAX
from control_plane.usecases.search_previews import SLOTS_MAX, SearchPreview, preview_submission
from control_plane.usecases.submission import Submission

router = guarded_router("search previews")


class SearchPreviewBody(RequestBody):
    """The body of `POST /search-previews`.

    `seconds_per_unit` is the assumed duration of a unit of training, for the estimate.
    """

    config: Annotated[str, Field(max_length=CONFIG_CHARACTERS_MAX)]
    template: Annotated[str, Field(max_length=100)] | None = None
    overrides: Annotated[list[Annotated[str, Field(max_length=4096)]], Field(max_length=200)] = []
    slots: Annotated[int, Field(ge=1, le=SLOTS_MAX)] | None = None
    seconds_per_unit: Annotated[float, Field(gt=0, le=1e7, allow_inf_nan=False)] = 1.0


@router.post("/search-previews")
@require_role(*USER_ROLES, changes=only_own)
def preview(body: SearchPreviewBody, caller: Caller, services: ServicesParameter) -> SearchPreview:
    """Preview a search: the number of trials by bracket and length. Nothing is created.

    With `slots`, the answer also estimates how long the search takes on this number of slots. If no
    estimate is possible, `estimate_missing` has the reason. Errors: `invalid` for problems of the
    configuration, or a search that is too large for a preview. `unavailable` while the cluster
    computes another preview.
    """
    submission = Submission(
        config=body.config, template=body.template, overrides=body.overrides, model_code=None
    )
    return preview_submission(services, submission, caller, body.slots, body.seconds_per_unit)
