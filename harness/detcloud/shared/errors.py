"""The errors that training code, scripts and every part of detcloud share."""


class DetcloudError(Exception):
    """A failure whose message is all that the user needs: shown without a traceback."""


class InvalidHP(Exception):
    """Raised by training code: these hyperparameters cannot work, try no longer with them."""


# Tracebacks and pickles name the errors as users import them.
for _error in (DetcloudError, InvalidHP):
    _error.__module__ = "detcloud"
