"""Examples of docs/python/errors.md. Tests run the script on a local cluster."""

# %% setup
import detcloud
from detcloud import Client
from detcloud.shared.http import ApiError, Unreachable

# %% ApiError
with Client() as client:
    try:
        client.experiment(999_999)
    except ApiError as error:
        print(error.status, error.code, error.message)  # 404 not_found ...

# %% Unreachable
with Client() as client:
    try:
        print(client.whoami()["user"])
    except Unreachable as error:
        print("the cluster does not answer:", error)

# %% WayClosed
from detcloud.shared.http import WayClosed

with Client() as client:
    try:
        print(client.whoami()["user"])
    except WayClosed as error:
        print("check the proxy and the certificates:", error)

# %% DetcloudError
with Client() as client:
    try:
        client.model("an/impossible/name")
    except detcloud.DetcloudError as error:
        print(error)

# %% NoCluster
from detcloud.client import NoCluster

try:
    with Client() as client:
        print(client.url)
except NoCluster:
    print("start a cluster with detcloud up")

# %% InvalidHP
from detcloud import core

try:
    with core.init(hparams={"layers": 64, "width": 4096}) as context:
        if context.info.hparams["layers"] * context.info.hparams["width"] > 4096:
            raise detcloud.InvalidHP("the model does not fit into the memory")
except SystemExit as exit:
    print("the process ends with code", exit.code)  # 0

# %% InvalidValue, InvalidType, InvalidCall
with core.init() as context:
    try:
        context.train.report_progress(2)
    except ValueError as error:
        print(error)
    try:
        context.train.report_training_metrics("10", {"loss": 0.5})
    except TypeError as error:
        print(error)
    for operation in context.searcher.operations(max_length=1):
        operation.complete(0.5)
        try:
            operation.complete(0.4)
        except RuntimeError as error:
            print(error)

# %% CheckpointDamaged, StorageError
from detcloud.core import CheckpointDamaged
from detcloud.storage.store import StorageError

with core.init() as context:
    checkpoint = context.info.latest_checkpoint
    if checkpoint is not None:
        try:
            context.checkpoint.download(checkpoint, "restored")
        except CheckpointDamaged as error:
            print("files differ from the files that were written:", error.cause)
            raise
        except StorageError as error:
            print("the store fails:", error)
            raise

# %% NoLauncher
from detcloud.core.distributed_context import NoLauncher

try:
    processes = core.DistributedContext.from_torch_distributed()
except NoLauncher:
    processes = core.DistributedContext()

# %% LeftOutWarning
import warnings

from detcloud.shared.errors import LeftOutWarning

with warnings.catch_warnings(), Client() as client:
    warnings.simplefilter("error", LeftOutWarning)  # an upload that leaves out files is an error
    client.upload_model_code("model")
