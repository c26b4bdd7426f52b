"""Options of searchers in configurations: plain classes whose annotations declare fields.

The configuration reference prints the string below each field.

control_plane/config/searcher.py builds a pydantic model from such a class when a configuration
first names the searcher. Instances of the model have the attributes that the class declares.
"""

from typing import Annotated, ClassVar, Final

from annotated_types import Ge, Le

from control_plane.actors.lengths import Unit
from control_plane.field_types import Count, Length, Text

TRIALS_MAX: Final = 1_000_000

Trials = Annotated[int, Ge(1), Le(TRIALS_MAX)]


class OptionGroup:
    """A map in a configuration: the options of a searcher, or a nested group of options."""

    takes_unknown_fields: ClassVar[bool] = False
    """Whether the configuration may have fields that are not declared here."""


class SearcherOptions(OptionGroup):
    """The options that every searcher has. `source_trial_id` takes precedence over
    `source_checkpoint_uuid`.
    """

    name: str
    """The search method."""
    metric: Text
    """The validation metric by which trials are compared."""
    smaller_is_better: bool = True
    """Whether smaller values of the metric are better."""
    source_trial_id: Count | None = None
    """The trial whose latest checkpoint all trials of the search start from. Only the weights are
    used.
    """
    source_checkpoint_uuid: Text | None = None
    """The UUID of the checkpoint that all trials start from, or the UUID's first characters; an
    alternative to source_trial_id.
    """

    def lengths(self) -> dict[str, Length]:
        """Return the lengths among the options by name. A trial's longest training comes first."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Length)}

    @property
    def length_unit(self) -> Unit:
        """Return the unit of the lengths. "batches" if no option is a length."""
        return next((length.unit for length in self.lengths().values()), "batches")

    @property
    def is_open_ended(self) -> bool:
        """Return whether the options lack a limit of training, so that the training code decides
        when a trial ends.
        """
        return getattr(self, "max_length", self) is None and not self.trial_time_metric

    @property
    def trial_time_metric(self) -> str:
        """Return the name of the time metric. "" if lengths measure training."""
        return ""


class TrialCountOptions(SearcherOptions):
    """The options of a searcher that samples a given number of trials."""

    max_trials: Trials
    """The number of hyperparameter settings that are tried."""
