"""Counts batches, and saves the count in a checkpoint when the trial is asked to stop.

Meanwhile the program echoes bytes at the port CHECK_PORT, for the check of a tunnel.
"""

import os
import socketserver
import threading
import time

from detcloud import core


class Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while received := self.request.recv(4096):
            self.request.sendall(received)


def serve_echo() -> None:
    socketserver.ThreadingTCPServer.daemon_threads = True
    address = ("127.0.0.1", int(os.environ["CHECK_PORT"]))
    with socketserver.ThreadingTCPServer(address, Echo) as server:
        server.serve_forever()


threading.Thread(target=serve_echo, daemon=True).start()
with core.init() as context:
    steps = 0
    if context.info.latest_checkpoint:
        with context.checkpoint.restore_path(context.info.latest_checkpoint) as folder:
            steps = int((folder / "batches").read_text())
    # A later run replaces the number.
    context.train.set_metadata({"resumed_at": steps})
    for operation in context.searcher.operations():
        while steps < operation.length and not context.preempt.should_preempt():
            time.sleep(0.2)
            steps += 1
            if steps % 5 == 0:
                context.train.report_training_metrics(steps, {"batches": steps})
        with context.checkpoint.store_path({"steps_completed": steps}) as (folder, _):
            (folder / "batches").write_text(str(steps))
        if steps < operation.length:
            break
        context.train.report_validation_metrics(steps, {"batches": steps})
        operation.complete(steps)
