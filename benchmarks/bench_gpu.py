"""How do gnnjit's layers do on a GPU, beside XLA, PyTorch Geometric and cuSPARSE?

    python benchmarks/bench_gpu.py --json gpu.jsonl              # within 8.5 minutes
    python benchmarks/bench_gpu.py --smoke                       # anywhere, within a minute
    python benchmarks/bench_gpu.py --layers gat --sizes arxiv --dtypes float32 --peers default,pyg

First gnnjit's values and gradients are compared with float64, then each layer is timed, the most
important first, until the time is up. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import importlib.util
import pathlib
import queue
import statistics
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from common import measure, report, workloads
from gpu import plan
from gpu.plan import PEERS, Group
from gpu.processes import LIMIT, NO_TIME, REFERENCE, STRIKES, PeerProcesses, Plan, Workloads, warm
from layers.case import MODES

Record = dict[str, Any]
GUESS = {"small": 8.0, "small3": 12.0, "arxiv": 15.0, "reddit": 90.0, "reddit4": 90.0}
"""Seconds of a group before one of its size was measured."""


@dataclasses.dataclass
class Bench:
    """One run: its facts, its processes and what was found."""

    plan: Plan
    facts: Record
    files: Workloads
    processes: PeerProcesses
    folder: pathlib.Path
    emit: Callable[[Record], None]
    plain: dict[str, Any] = dataclasses.field(default_factory=dict)

    def check_all(self, checks: Sequence[Group]) -> None:
        """Compare gnnjit with float64 on a small graph, in several processes at once."""
        tasks: queue.SimpleQueue[Group] = queue.SimpleQueue()
        for group in checks:
            tasks.put(group)
        until = self.plan.left() * 0.7

        def lane(processes: PeerProcesses) -> None:
            while True:
                try:
                    group = tasks.get_nowait()
                except queue.Empty:
                    return
                if self.plan.left() < until:
                    self.skip(group, NO_TIME, modes=("check",))
                    continue
                with self.skipping(group, modes=("check",)):
                    for record in self.check(processes, group):
                        self.emit(record)

        lanes = [
            self.processes,
            *(PeerProcesses(self.plan) for _ in range(self.plan.lanes - 1)),
        ]
        threads = [threading.Thread(target=lane, args=(processes,)) for processes in lanes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for processes in lanes[1:]:
            processes.close()

    def check(self, processes: PeerProcesses, group: Group) -> Iterator[Record]:
        """Records of mode "check": matrix products in float32, nothing timed."""
        group = dataclasses.replace(group, size="check")
        own = [p for p in self.plan.peers if PEERS[p][0] == "gnnjit"]
        found = self.ready(processes, group, own, "float32", modes=("both",))
        for peer, record in found.items():
            keys = "compile_seconds", "first_seconds"
            extra = {k: record["costs"]["both"][k] for k in keys} if "costs" in record else {}
            yield (
                self.record(group, peer, "check")
                | {k: v for k, v in record.items() if k != "costs"}
                | extra
            )

    def measure(self, group: Group) -> None:
        """Load, compare and time one group."""
        alone = plan.is_alone(group, self.plan.sizes[group.size])
        if alone:
            self.processes.drop(*PEERS)
        for wave in plan.waves(self.plan.peers, alone):
            found = self.ready(self.processes, group, wave, self.plan.matmul, MODES)
            fine = [p for p, record in found.items() if record["status"] == "ok"]
            for mode in MODES:
                times = self.take_turns(fine, mode)
                for peer in found:
                    record = self.record(group, peer, mode) | {"interleaved": not alone}
                    record |= {k: v for k, v in found[peer].items() if k != "costs"}
                    if "costs" in found[peer]:
                        record |= found[peer]["costs"][mode]
                    self.emit(record | times.get(peer, {}))
            if alone:
                self.processes.drop(*wave)

    def ready(
        self,
        processes: PeerProcesses,
        group: Group,
        peers: Sequence[str],
        matmul: str,
        modes: Sequence[str],
    ) -> dict[str, Record]:
        """Every peer loaded, compiled, run and compared, all at once: status, errors, costs."""
        path = self.files[group.size]
        platform = self.facts["platform"]
        found: dict[str, Record] = {}
        for peer in peers:
            reason = plan.why_not(group, peer, platform)
            if reason is None and processes.slow[peer] >= STRIKES:
                reason = f"no answer within {LIMIT:.0f} s, {STRIKES} times before"
            if reason is not None:
                found[peer] = {"status": "skipped", "reason": reason}
        asked = [p for p in peers if p not in found]
        if not asked:
            return found
        want = self.folder / f"{group}.want.npz"

        def prepare(peer: str) -> Record:
            configuration = PEERS[peer][1]
            processes.ask(peer, "load", group.layer, configuration, path, group.dtype, matmul)
            return {mode: processes.ask(peer, "prepare", mode, modes) for mode in modes}

        with concurrent.futures.ThreadPoolExecutor(len(asked) + 1) as pool:
            plain = pool.submit(self.expected, processes, group, want)
            costs = {peer: pool.submit(prepare, peer) for peer in asked}
            done = {
                peer: pool.submit(
                    self.compare, processes, group, peer, matmul, want, plain, costs[peer]
                )
                for peer in asked
            }
            found |= {peer: future.result() for peer, future in done.items()}
        return found

    def expected(self, processes: PeerProcesses, group: Group, want: pathlib.Path) -> Any:
        """Write the float64 values to `want`, once; the errors of plain low precision."""
        if want.name not in self.plain:
            path = self.files[group.size]
            self.plain[want.name] = processes.ask(
                REFERENCE, "expected", group.layer, path, group.dtype, want
            )
        return self.plain[want.name]

    def compare(
        self,
        processes: PeerProcesses,
        group: Group,
        peer: str,
        matmul: str,
        want: pathlib.Path,
        plain: concurrent.futures.Future[Any],
        costs: concurrent.futures.Future[Record],
    ) -> Record:
        """The verdict on one peer, once it and the reference have run."""
        try:
            found: Record = {"costs": costs.result(), "matmul": matmul}
            yardstick = plain.result()
            errors, same = processes.ask(peer, "errors", want)
        except measure.WorkerError as error:
            return _failure(str(error))
        if PEERS[peer][0] == "gnnjit":
            reason = plan.wrong(errors, yardstick, group.layer, group.dtype, matmul)
        else:
            reason = plan.peer_wrong(errors, group.dtype)
        found |= {"errors": errors, "plain_errors": yardstick, "bits_identical": same}
        status = {"status": "ok"} if reason is None else {"status": "wrong", "reason": reason}
        return found | status

    def take_turns(self, peers: Sequence[str], mode: str) -> dict[str, Record]:
        """A B C A B C ...: batches of calls, so that launches overlap as they do in a program."""
        calls, times, failed = dict[str, int](), dict[str, list[float]](), dict[str, Record]()
        for turn in range(-1, self.plan.rounds):
            for peer in [p for p in peers if p not in failed]:
                try:
                    seconds, _ = self.processes.ask(peer, "time", mode, calls.get(peer, 1))
                except measure.WorkerError as error:
                    failed[peer] = _failure(str(error))
                    continue
                if turn < 0:
                    batch = self.plan.batch_seconds / max(seconds, 1e-7)
                    calls[peer] = min(max(int(batch), 1), 1000)
                else:
                    times.setdefault(peer, []).append(seconds)
        found = {
            p: {
                "calls": calls[p], "seconds": t, "min_seconds": min(t),
                "median_seconds": statistics.median(t),
            }
            for p, t in times.items()
        }  # fmt: skip
        return found | failed

    def record(self, group: Group, peer: str, mode: str) -> Record:
        """What is known of a case beforehand."""
        sizes = self.plan.sizes[group.size]
        who = dict(zip(("implementation", "configuration"), PEERS[peer], strict=True))
        when = dataclasses.asdict(group) | {"mode": mode, "peer": peer} | who
        item = plan.DTYPES[group.dtype]
        return self.facts | when | {
            "sizes": dataclasses.asdict(sizes),
            "must_move": workloads.must_move(group.layer, mode, sizes, item),
        }  # fmt: skip

    def skip(
        self, group: Group, reason: str, modes: Sequence[str] = MODES, status: str = "skipped"
    ) -> None:
        for peer in self.plan.peers:
            for mode in modes:
                about = self.record(group, peer, mode)
                self.emit(about | {"status": status, "reason": reason})

    @contextlib.contextmanager
    def skipping(self, group: Group, modes: Sequence[str] = MODES) -> Iterator[None]:
        """What goes wrong costs one group: a mistake here must not waste the device's time."""
        try:
            yield
        except TimeoutError:
            self.skip(group, NO_TIME, modes)
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            self.skip(group, f"{type(error).__name__}: {error}", modes, "failed")

    def measure_all(self) -> None:
        """Group by group, until the time is up."""
        took = dict(GUESS)
        for group in self.plan.groups:
            if self.plan.left() < took[group.size]:
                self.skip(group, NO_TIME)
                continue
            started = time.monotonic()
            with self.skipping(group):
                self.measure(group)
            took[group.size] = time.monotonic() - started
            say(f"{group}: {took[group.size]:.1f} s, {self.plan.left():.0f} s left")


def _failure(reason: str) -> Record:
    if reason == NO_TIME or reason.startswith("no answer within"):
        return {"status": "skipped", "reason": reason}
    memory = ("out of memory", "RESOURCE_EXHAUSTED", "OutOfMemoryError", "MemoryError")
    if any(word in reason for word in memory) and "the process ended" not in reason:
        return {"status": "skipped", "reason": f"out of memory: {reason}"}
    return {"status": "failed", "reason": reason}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def facts(processes: PeerProcesses, plan: Plan) -> Record:
    """What every record says of the device and the software."""
    peers = [p for p in plan.peers if PEERS[p][0] != "pyg"] or ["segment"]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:  # both libraries take seconds to start
        torch = pool.submit(cuda, processes, plan)
        device = processes.ask_within(LIMIT, peers[0], "device")
    platform = device.split()[0]
    copied = 1 << (24 if platform == "cpu" else 30)
    rate = processes.ask_within(LIMIT, peers[0], "copy_bandwidth", copied)
    return {
        "benchmark": "gpu", "smoke": plan.smoke, "platform": platform, "device": device,
        "driver": measure.driver(), "cuda": torch.result(),
        "cache_bytes": torch.result().get("cache_bytes"),
        "bytes_per_second": rate, "matmul": plan.matmul,
        "machine": measure.machine(measure.usable_cpus()), "versions": measure.versions(),
    }  # fmt: skip


def cuda(processes: PeerProcesses, plan: Plan) -> Record:
    """What PyTorch knows of the GPU; empty without either."""
    with_torch = [p for p in plan.peers if PEERS[p][0] == "pyg"]
    if not with_torch or importlib.util.find_spec("torch") is None:
        return {}
    try:
        return processes.ask_within(LIMIT, with_torch[0], "cuda")
    except measure.WorkerError as error:
        say(f"PyTorch has no GPU: {error}")
        return {}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    top.add_argument("--smoke", action="store_true", help="tiny sizes; times mean nothing")
    top.add_argument("--minutes", type=float, default=8.5, help="deadline of the whole run")
    top.add_argument("--layers", default=",".join(plan.CHOSEN), help="comma-separated")
    top.add_argument("--sizes", help=f"comma-separated, of {', '.join(plan.SIZES)}")
    top.add_argument("--dtypes", default=",".join(plan.DTYPES), help="comma-separated")
    top.add_argument("--peers", default=",".join(plan.USUAL_PEERS), help="comma-separated")
    top.add_argument("--matmul", choices=("tf32", "float32"), default="tf32",
                     help="float32 matrix products when timed, in JAX and PyTorch")  # fmt: skip
    top.add_argument("--rounds", type=int, help="timed batches of each case")
    top.add_argument("--no-check", action="store_true", help="no comparison ahead of the timing")
    top.add_argument("--folder", type=pathlib.Path,
                     help="keep the workloads there, and take those that are there")  # fmt: skip
    top.add_argument("--json", type=pathlib.Path, help="append a line per case to this file")
    return top


def make_plan(args: argparse.Namespace) -> Plan:
    """Defaults for what was left out. Raises SystemExit on a mistake."""
    started = time.monotonic()
    sizes = plan.SMOKE_SIZES if args.smoke else plan.SIZES
    known = {
        "layers": plan.CHOSEN, "sizes": tuple(sizes), "dtypes": tuple(plan.DTYPES),
        "peers": tuple(PEERS),
    }  # fmt: skip
    chosen = {}
    for name, names in known.items():
        given = getattr(args, name)
        some = names if given is None else tuple(n.strip() for n in given.split(",") if n.strip())
        unknown = sorted(set(some) - set(names))
        if unknown:
            raise SystemExit(f"--{name}: unknown {unknown}, expected {list(names)}")
        chosen[name] = some
    peers = tuple(p for p in PEERS if p in chosen["peers"])  # in order
    groups = plan.groups(chosen["layers"], chosen["sizes"], chosen["dtypes"], args.smoke)
    if not groups or not peers or args.minutes <= 0:
        raise SystemExit("nothing to measure: --layers, --sizes, --dtypes, --peers, --minutes")
    rounds = args.rounds or (2 if args.smoke else 7)
    small = args.smoke
    return Plan(
        tuple(groups), peers, sizes, "float32" if small else args.matmul, rounds,
        0.0 if small else 0.04, min(5, max(1, measure.usable_cpus() // 3)), small, started,
        60 * args.minutes,
    )  # fmt: skip


def failures(records: Sequence[Record]) -> list[str]:
    """What makes the exit code 1."""
    bad = [r for r in records if r["status"] == "wrong" or _broken(r)]
    return [f"{r['layer']} {r['size']} {r['dtype']} {r['peer']}: {r['reason']}" for r in bad]


def _broken(record: Record) -> bool:
    return record["status"] == "failed" and record["implementation"] == "gnnjit"


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; 1 if numbers were wrong or gnnjit failed."""
    args = parser().parse_args(argv)
    plan = make_plan(args)
    records: list[Record] = []
    lock = threading.Lock()

    def emit(record: Record) -> None:
        with lock:
            records.append(record)
            measure.append(args.json, record)

    processes = PeerProcesses(plan)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if args.folder is not None:
            args.folder.mkdir(parents=True, exist_ok=True)
        files = Workloads(plan, args.folder or folder)
        try:
            bench = Bench(plan, facts(processes, plan), files, processes, folder, emit)
            if not (args.no_check or plan.smoke):
                pairs = dict.fromkeys((g.layer, g.dtype) for g in plan.groups)
                warming = threading.Thread(target=warm, args=(processes, plan))
                warming.start()
                bench.check_all([Group(layer, "check", dtype) for layer, dtype in pairs])
                warming.join()
                say(f"checked, {plan.left():.0f} s left")
            bench.measure_all()
        finally:
            processes.close()
            files.close()
    print(report.text(records))
    bad = dict.fromkeys(failures(records))
    for line in bad:
        print(f"FAILED: {line}", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
