"""The removal of archives of installed packages whose experiments have ended.

An agent may finish an upload just after its experiment's collection. A sweep over all archives
finds these archives. Each collector runs the sweep at most once a day, in a pass that has other
work first. The removal of a needed archive costs only a repeated installation.
"""

from itertools import count

from control_plane.actors import addresses
from control_plane.actors.experiment.state import ExperimentState
from control_plane.checkpoint_gc.rate_limit import (
    BUSY_ANSWERS_MAX,
    NO_FILES,
    ONE_FILE,
    STORE_BUSY,
    Steps,
)
from control_plane.checkpoint_gc.stores import CollectionFailed, Stores
from control_plane.objects.package_archives import NAMESPACE, archives_folder, list_archives
from control_plane.objects.store import ObjectKey, ObjectStore
from detcloud.shared.bucket_errors import StoreBusy

SWEEP_SECONDS = 24 * 3600.0


def remove_package_archives(stores: Stores, experiment_id: int) -> Steps:
    """Remove all archives of packages of an experiment from the object store, in steps.

    Raises CollectionFailed if an archive cannot be removed.
    """
    try:
        yield from remove_objects(stores.objects, archives_folder(experiment_id))
    except OSError as error:
        raise CollectionFailed(f"cannot remove its archives of packages: {error}") from None


def sweep_package_archives(stores: Stores) -> Steps:
    """Remove the archives of packages of all experiments that have ended or do not exist, in steps.

    Raises OSError if an archive cannot be removed, and TableError.
    """
    archives = list_archives(stores.objects, ObjectKey(NAMESPACE))
    for experiment_id in sorted({one.experiment_id for one in archives}):
        state = stores.engine.read_state(addresses.experiment(experiment_id))
        if not isinstance(state, ExperimentState) or state.status.is_final:
            yield from remove_objects(stores.objects, archives_folder(experiment_id))
        yield NO_FILES


def remove_objects(objects: ObjectStore, prefix: ObjectKey) -> Steps:
    """Remove the objects below the folder `prefix`, a single object in each step.

    If the store asks for fewer requests, yield STORE_BUSY and retry the object in the next step.
    Raises StoreBusy after more than BUSY_ANSWERS_MAX such answers for an object, and other OSErrors
    at once.
    """
    for listed in objects.list_objects(prefix):
        yield from remove_object(objects, listed.key)


def remove_object(objects: ObjectStore, key: ObjectKey) -> Steps:
    """Remove an object, in a single step unless the store asks for fewer requests.

    Otherwise as `remove_objects`. A missing object is no error.
    """
    for answers in count(1):
        try:
            objects.delete(key)
            break
        except StoreBusy:
            if answers > BUSY_ANSWERS_MAX:
                raise
        yield STORE_BUSY
    yield ONE_FILE
