"""Runs of simulated clusters, by seed, in this process or in several processes."""

import gc
import json
import multiprocessing
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from simulator.checks.state_checker import InvariantBroken
from simulator.faults.fault_rates import FAULT_NAMES, sample_fault_rates
from simulator.seeded.simulated_cluster import ClusterSize, SimulatedCluster

# Simulated clusters write small files, which are fastest in a folder in memory.
FAST_FOLDER = Path("/dev/shm")
SHOWN_CHARACTERS_MAX = 2_000


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of the run of a seed."""

    seed: int
    violation: str = ""
    """The broken invariant or another error of the run, or ""."""
    virtual_seconds: float = 0.0
    wall_seconds: float = 0.0
    commits: int = 0
    experiments: dict[str, int] = field(default_factory=dict)
    """The number of experiments by status."""
    trials: int = 0
    preemptions: int = 0
    losses: int = 0
    """The runs of trials that were lost."""
    restarts: int = 0
    """The restarts of trials after failures of their code."""
    machines: int = 0
    """The machines that the cloud launched."""
    leaked: int = 0
    """The instances that were without an owner for too long."""
    orphans: int = 0
    """The number of times that an instance was newly found without an owner."""
    cost: float = 0.0
    """The cost of the cloud's machines in dollars."""
    utilisation: float = 0.0
    """The share of the machines' slots that processes used."""
    notices: int = 0
    """The notices that left enough time for a checkpoint."""
    saved: int = 0
    """The notices after which the cluster recorded a checkpoint."""
    hosts_died: int = 0
    """The crashes of hosts."""
    faults: dict[str, int] = field(default_factory=dict)
    """The number of injected faults by name."""
    digest: int = 0
    """A checksum of the keys of all commits. Equal for equal seeds and plans."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings that all runs share."""

    faults: tuple[str, ...] = FAULT_NAMES
    """The faults that may occur: fields of FaultRates."""
    size: ClusterSize = field(default_factory=ClusterSize)
    """The size of the clusters."""

    def command(self, seed: int) -> str:
        """Return the shell command that repeats the run of a seed. Default options are omitted."""
        words = [f"detcloud simulate cluster --seed {seed}"]
        if self.faults != FAULT_NAMES:
            words.append(f"--faults {','.join(self.faults) or 'none'}")
        plain = ClusterSize()
        for name in ("experiments", "pools", "hours"):
            if getattr(self.size, name) != getattr(plain, name):
                words.append(f"--{name} {getattr(self.size, name)}")
        if self.size.machines_max != plain.machines_max:
            words.append(f"--agents {self.size.machines_max}")
        return " ".join(words)


def run_seed(seed: int, plan: Plan) -> Outcome:
    """Run a simulated cluster to its end or to the first error, and return the outcome.

    A broken invariant and any other exception become the outcome's `violation`, a text of at most
    SHOWN_CHARACTERS_MAX characters.
    """
    rates = sample_fault_rates(Random(f"{seed}/chances"), plan.faults)
    folder = FAST_FOLDER if FAST_FOLDER.is_dir() else None
    with TemporaryDirectory(prefix="detcloud-world-", dir=folder) as path:
        cluster = SimulatedCluster(seed, rates, plan.size, Path(path))
        started = time.perf_counter()
        violation = ""
        try:
            cluster.run()
        except InvariantBroken as broken:
            violation = str(broken)
        except Exception as error:
            # An error in a single cluster must not end the runs of the other seeds.
            frame = traceback.extract_tb(error.__traceback__)[-1]
            violation = f"{error!r} in {frame.filename}, line {frame.lineno}"
        return _outcome(cluster, violation[:SHOWN_CHARACTERS_MAX], time.perf_counter() - started)


def run_seeds(seeds: Sequence[int], plan: Plan, processes: int) -> Iterator[Outcome]:
    """Run a simulated cluster for each seed, and yield each outcome at its end.

    With a single process, the clusters run in this process, in the order of the seeds.

    Args:
        processes: the number of processes that run clusters at the same time.
    """
    if processes == 1:
        run = _Runner(plan)
        for seed in seeds:
            yield run(seed)
        return
    method = multiprocessing.get_context("forkserver")
    with closing(method.Pool(processes, maxtasksperchild=200)) as pool:
        yield from pool.imap_unordered(_Runner(plan), seeds, chunksize=1)


def read_outcomes(path: Path | None) -> dict[int, Outcome]:
    """Read the outcomes that earlier runs have written, by seed.

    Skip invalid lines, such as an incomplete last line. Return no outcomes without a file. Raises
    OSError if the file cannot be read.
    """
    outcomes: dict[int, Outcome] = {}
    if path is None or not path.exists():
        return outcomes
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            outcome = Outcome(**json.loads(line))
        except (TypeError, ValueError):
            continue
        outcomes[outcome.seed] = outcome
    return outcomes


def outcome_writer(path: Path | None) -> Callable[[Outcome], None]:
    """Return a function that appends an outcome to the file `path`, as a line of JSON.

    Without a path, the function does nothing.
    """

    def write(outcome: Outcome) -> None:
        if path is not None:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(outcome)) + "\n")

    return write


def sum_outcomes(outcomes: Iterable[Outcome]) -> dict[str, object]:
    """Return the sums of the outcomes, as values for JSON.

    `seeds` is the number of outcomes, and `violations` the number of outcomes with a violation.
    `experiments` and `faults` are mappings with sums for each key. `utilisation` is the average of
    the outcomes, and 0 without outcomes. `virtual_over_real` is the ratio of the summed times, and
    0 without real time.
    """
    counted = list(outcomes)
    names = ("trials", "preemptions", "losses", "restarts", "machines", "orphans", "leaked")
    sums: dict[str, object] = {
        name: sum(getattr(outcome, name) for outcome in counted)
        for name in (*names, "commits", "notices", "saved", "hosts_died")
    }
    virtual, wall = (
        sum(getattr(outcome, f"{x}_seconds") for outcome in counted) for x in ("virtual", "wall")
    )
    return {
        "seeds": len(counted),
        "violations": sum(bool(outcome.violation) for outcome in counted),
        "virtual_seconds": virtual,
        "wall_seconds": wall,
        "virtual_over_real": virtual / wall if wall else 0.0,
        "experiments": _sum_counts(outcome.experiments for outcome in counted),
        **sums,
        "cost": sum(outcome.cost for outcome in counted),
        "utilisation": sum(outcome.utilisation for outcome in counted) / len(counted)
        if counted
        else 0.0,
        "faults": _sum_counts(outcome.faults for outcome in counted),
    }


class _Runner:
    """A picklable function that runs a seed by the plan.

    A call disables the garbage collection of the process.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def __call__(self, seed: int) -> Outcome:
        # A cluster leaves few reference cycles, and the garbage collection takes a tenth of the
        # time.
        gc.disable()
        outcome = run_seed(seed, self._plan)
        gc.collect()
        # The remaining objects are modules, which later collections need not scan.
        gc.freeze()
        return outcome


def _outcome(cluster: SimulatedCluster, violation: str, wall_seconds: float) -> Outcome:
    """Return the outcome of a cluster's run, with the counts at the end of the run."""
    trials = cluster.checker.actor_states("trial")
    ended = _sum_counts(
        {state.status.value: 1} for state in cluster.checker.actor_states("experiment")
    )
    return Outcome(
        seed=cluster.seed,
        violation=violation,
        virtual_seconds=cluster.clock.now_ms / 1000,
        wall_seconds=wall_seconds,
        commits=cluster.checker.commits,
        experiments=ended,
        trials=len(trials),
        preemptions=cluster.checker.preemptions,
        losses=sum(trial.losses for trial in trials),
        restarts=sum(trial.restarts for trial in trials),
        machines=len(cluster.cloud.machines),
        leaked=cluster.machines.instance_checker.leaked,
        orphans=cluster.machines.instance_checker.orphans,
        cost=round(cluster.cloud.total_cost(), 4),
        utilisation=round(cluster.machines.utilisation, 4),
        notices=len(cluster.process_environment.due_checkpoints),
        saved=cluster.invariants.count_known_checkpoints(
            cluster.process_environment.due_checkpoints
        ),
        hosts_died=cluster.hosts.crashes,
        faults=dict(sorted(cluster.faults.counts.items())),
        digest=cluster.checker.digest,
    )


def _sum_counts(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    """Return the sum of the counts by name, sorted by name."""
    total: dict[str, int] = {}
    for count in counts:
        for name, number in count.items():
            total[name] = total.get(name, 0) + number
    return dict(sorted(total.items()))
