"""Running estimates of the times of jobs (NeuGraph, section 3.2): what refining an order of chunks
from several epochs would need. `stream(refined=True)` takes the times of one."""

from __future__ import annotations

from collections.abc import Iterable

from gnnjit.errors import PlanError
from gnnjit.streaming.runtime.timeline import Job, _check_seconds


class Profile:
    """Running estimates of the seconds of each job, from measured ones.

    GNN training repeats the same chunks in every epoch: NeuGraph profiles the first ones and
    improves the order of those that follow. An estimate is an exponential average: the first
    measurement as it is, then `weight` of the newest and the rest of what was known.

    Raises:
        PlanError: `weight` is not in (0, 1].
    """

    def __init__(self, weight: float = 0.5) -> None:
        if not 0 < weight <= 1:
            raise PlanError(f"weight is {weight!r}, expected a number above 0 and at most 1")
        self._weight = float(weight)
        self._seconds: dict[tuple[str, str], float] = {}

    def observe(
        self, name: str, *, transfer: float | None = None, compute: float | None = None
    ) -> None:
        """Measured seconds of a job; None leaves an estimate as it is. Raises PlanError where they
        are negative or not finite."""
        for what, seconds in (("transfer", transfer), ("compute", compute)):
            if seconds is None:
                continue
            _check_seconds(name, what, seconds)
            known = self._seconds.get((name, what), seconds)
            self._seconds[name, what] = known + self._weight * (seconds - known)

    def knows(self, name: str) -> bool:
        """Whether both times of a job have been measured."""
        return (name, "transfer") in self._seconds and (name, "compute") in self._seconds

    def jobs(self, names: Iterable[str]) -> list[Job]:
        """Jobs of these names with the estimated times. Raises PlanError where one is unknown."""
        names = list(names)
        unknown = [n for n in names if not self.knows(n)]
        if unknown:
            raise PlanError(
                f"no times of {', '.join(map(repr, unknown))} have been measured: observe() a "
                "transfer and a computation of each first"
            )
        return [Job(n, self._seconds[n, "transfer"], self._seconds[n, "compute"]) for n in names]
