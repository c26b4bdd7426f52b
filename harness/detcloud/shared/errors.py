"""The errors that training code, scripts and every part of detcloud share."""


class DetcloudError(Exception):
    """A failure whose message is all that the user needs: shown without a traceback."""


class InvalidValue(DetcloudError, ValueError):
    """A value that cannot be; scripts may catch it as Python's own, as they do Determined's."""


class InvalidType(DetcloudError, TypeError):
    """A value of a type that cannot be; scripts may catch it as Python's own."""


class InvalidCall(DetcloudError, RuntimeError):
    """A call that cannot be made here, now or like this; scripts may catch it as Python's own."""


class InvalidHP(Exception):
    """Raised by training code: these hyperparameters cannot work, try no longer with them."""


# Tracebacks and pickles name the errors as users import them.
for _error in (DetcloudError, InvalidHP):
    _error.__module__ = "detcloud"
