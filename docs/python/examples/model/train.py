"""The code of the examples' trials: the minimum of a parabola."""

import json

from detcloud import core

with core.init() as context:
    steps, x = 0, 10.0
    if context.info.latest_checkpoint:
        with context.checkpoint.restore_path(context.info.latest_checkpoint) as folder:
            steps, x = json.loads((folder / "state.json").read_text())
    context.train.set_metadata({"data": {"version": 3}})
    for operation in context.searcher.operations():
        while steps < operation.length and not context.preempt.should_preempt():
            x -= context.info.hparams["learning_rate"] * 2 * x
            steps += 1
            context.train.report_training_metrics(steps, {"loss": x * x})
        with context.checkpoint.store_path({"steps_completed": steps}) as (folder, uuid):
            (folder / "state.json").write_text(json.dumps([steps, x]))
        if steps < operation.length:
            break
        print("the loss is", x * x, flush=True)
        context.train.report_validation_metrics(steps, {"loss": x * x})
        operation.complete(x * x)
