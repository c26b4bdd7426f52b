"""Runs of simulated clusters: one seed, or many on all cores, with the outcome of each."""

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

from lambdas.simulation.fault_rates import FAULT_NAMES, sample_fault_rates
from lambdas.simulation.simulated_cluster import ClusterSize, SimulatedCluster
from lambdas.simulation.state_checker import InvariantBroken

# Simulated clusters write small files; where memory can hold them they cost next to nothing.
FAST_FOLDER = Path("/dev/shm")
SHOWN_CHARACTERS_MAX = 2_000


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a seed. `violation`: the invariant that is broken, "" for none.

    `cost` in dollars; `utilisation`: the share of machines' slot-time in which a trial's process
    had it; `notices`: how many left time for a checkpoint, of which `saved` ended in one;
    `digest`: a checksum of all commits, the same for the same seed.
    """

    seed: int
    violation: str = ""
    virtual_seconds: float = 0.0
    wall_seconds: float = 0.0
    commits: int = 0
    experiments: dict[str, int] = field(default_factory=dict)
    trials: int = 0
    preemptions: int = 0
    losses: int = 0
    restarts: int = 0
    machines: int = 0
    leaked: int = 0
    orphans: int = 0
    cost: float = 0.0
    utilisation: float = 0.0
    notices: int = 0
    saved: int = 0
    hosts_died: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    digest: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """The runs to do: the faults that are allowed, by name, and the size of the clusters."""

    faults: tuple[str, ...] = FAULT_NAMES
    size: ClusterSize = field(default_factory=ClusterSize)

    def command(self, seed: int) -> str:
        """Return the command that runs one seed again."""
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
    """Run one simulated cluster to its end, or to the first broken invariant."""
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
            # One cluster that breaks off must not end a run of thousands.
            frame = traceback.extract_tb(error.__traceback__)[-1]
            violation = f"{error!r} in {frame.filename}, line {frame.lineno}"
        return _outcome(cluster, violation[:SHOWN_CHARACTERS_MAX], time.perf_counter() - started)


def run_seeds(seeds: Sequence[int], plan: Plan, processes: int) -> Iterator[Outcome]:
    """Run many simulated clusters; yields outcomes in the order in which they end."""
    if processes == 1:
        run = _Runner(plan)
        for seed in seeds:
            yield run(seed)
        return
    method = multiprocessing.get_context("forkserver")
    with closing(method.Pool(processes, maxtasksperchild=200)) as pool:
        yield from pool.imap_unordered(_Runner(plan), seeds, chunksize=1)


def read_outcomes(path: Path | None) -> dict[int, Outcome]:
    """Read the outcomes that an earlier run has written, by seed; a line that was cut off is left
    out.
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
    """Return a function that appends an outcome to a file, as a line, for a later run to go on
    from.
    """

    def write(outcome: Outcome) -> None:
        if path is not None:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(outcome)) + "\n")

    return write


def sum_outcomes(outcomes: Iterable[Outcome]) -> dict[str, object]:
    """Return the sums of all outcomes."""
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
    """A plan as a function, which can be sent to other processes."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def __call__(self, seed: int) -> Outcome:
        # The garbage of a cluster is a few cycles, and looking for them takes a tenth of the time.
        gc.disable()
        outcome = run_seed(seed, self._plan)
        gc.collect()
        # What is left is modules: they would be looked through after each seed.
        gc.freeze()
        return outcome


def _outcome(cluster: SimulatedCluster, violation: str, wall_seconds: float) -> Outcome:
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
        leaked=cluster.machines.leaked,
        orphans=cluster.machines.orphans,
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
    total: dict[str, int] = {}
    for count in counts:
        for name, number in count.items():
            total[name] = total.get(name, 0) + number
    return dict(sorted(total.items()))
