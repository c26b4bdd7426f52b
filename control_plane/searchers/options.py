"""Options of searchers, as configurations write them: plain classes whose annotations are fields.

The string below a field says what it means; the configuration reference prints it.

control_plane/config/searcher.py makes the pydantic model of a class when a configuration first
names its searcher; what is checked has the attributes that are declared here.
"""

from typing import Annotated, ClassVar, Final

from annotated_types import Ge, Le

from control_plane.actors.lengths import Unit
from control_plane.field_types import Count, Length, Text

TRIALS_MAX: Final = 1_000_000

Trials = Annotated[int, Ge(1), Le(TRIALS_MAX)]


class OptionGroup:
    """A map of options: those of a searcher, or of a group of them."""

    takes_unknown_fields: ClassVar[bool] = False
    """Whether fields that are not declared are kept instead of refused."""


class SearcherOptions(OptionGroup):
    """The options of every searcher. Of the two sources of a first checkpoint the trial wins."""

    name: str
    """The search method."""
    metric: Text
    """The validation metric that trials are compared by."""
    smaller_is_better: bool = True
    """Whether smaller values of the metric are better."""
    source_trial_id: Count | None = None
    """A trial from whose latest checkpoint the trials start: from the weights, and from nothing
    else of it.
    """
    source_checkpoint_uuid: Text | None = None
    """The UUID of the checkpoint to start from, or the beginning of it; instead of source_trial_id.
    """

    def lengths(self) -> dict[str, Length]:
        """Return every length by its option; a trial's longest training comes first."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Length)}

    @property
    def length_unit(self) -> Unit:
        """The unit of the lengths; batches where there is none."""
        return next((length.unit for length in self.lengths().values()), "batches")

    @property
    def is_open_ended(self) -> bool:
        """Whether trials train as long as their code does: nothing says how long."""
        return getattr(self, "max_length", self) is None and not self.trial_time_metric

    @property
    def trial_time_metric(self) -> str:
        """The metric that tells how long a trial has trained, "" where lengths do."""
        return ""


class TrialCountOptions(SearcherOptions):
    """A number of trials that the space is sampled for."""

    max_trials: Trials
    """How many hyperparameter settings are tried."""
