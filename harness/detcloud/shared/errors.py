"""The errors that training code, scripts and all parts of detcloud share."""


class DetcloudError(Exception):
    """A failure that is shown to users as a message without a traceback."""


class InvalidValue(DetcloudError, ValueError):
    """An argument or setting with an invalid value. Scripts may catch ValueError instead."""


class InvalidType(DetcloudError, TypeError):
    """An argument of an invalid type. Scripts may catch TypeError instead."""


class InvalidCall(DetcloudError, RuntimeError):
    """A call that is invalid in the current state. Scripts may catch RuntimeError instead."""


class InvalidHP(Exception):
    """An error of training code: the trial's hyperparameters cannot work and are given up."""


class LeftOutWarning(UserWarning):
    """A warning that an upload leaves out files that the user may expect in the upload."""


# Tracebacks and pickles must name the errors by the module that users import.
for _error in (DetcloudError, InvalidHP):
    _error.__module__ = "detcloud"
