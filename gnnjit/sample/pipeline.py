"""Threads that make things in order, some ahead, and help each other with what is slow.

GraphTensor, section V-B, relaxes the order of the work on a batch to what depends on what. Here the
thread that makes an item offers parts of it as tasks, which threads without an item of their own
take. Where we differ: several items are made at once too, so no thread waits for a barrier.
"""

from __future__ import annotations

import atexit
import collections
import functools
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

Work = Callable[[], Any]


class Tasks:
    """Parts of one item, that any thread may do."""

    def __init__(self, offer: Callable[[Tasks], None] | None = None) -> None:
        self._offer = offer
        self._change = threading.Condition()
        self._waiting: collections.deque[Work] = collections.deque()
        self._running = 0
        self._error: BaseException | None = None

    def add(self, work: Work) -> None:
        """Something that is to be done before `finish` returns."""
        with self._change:
            self._waiting.append(work)
        if self._offer is not None:
            self._offer(self)

    def help(self) -> bool:
        """Do one task; False where none waits."""
        with self._change:
            if not self._waiting:
                return False
            work = self._waiting.popleft()
            self._running += 1
        error = None
        try:
            work()
        except BaseException as raised:  # raised again by `finish`
            error = raised
        with self._change:
            self._running -= 1
            self._error = self._error or error
            self._change.notify_all()
        return True

    def finish(self) -> None:
        """Do what nobody has begun and wait for the rest; what a task raised is raised."""
        while self.help():
            pass
        self._await()
        if self._error is not None:
            raise self._error

    def drop(self) -> None:
        """Forget what nobody has begun, and wait for the rest."""
        with self._change:
            self._waiting.clear()
        self._await()
        self._error = None

    def _await(self) -> None:
        with self._change:
            while self._running:
                self._change.wait()


Make = Callable[[int, Tasks], Any]


def in_order(make: Make, begin: int, end: int, threads: int, ahead: int) -> Iterator[Any]:
    """`make(i, tasks)` for `i` from `begin` to `end - 1`, in order.

    At most `ahead` items are made, or being made, that were not asked for yet; with 0, or without
    threads, an item is made in the thread that asks. What `make` raises is raised where its item
    is due. Closing the iterator ends the threads, and so does its end of any other kind.
    """
    if threads < 1 or ahead < 1:
        for number in range(begin, end):
            yield make(number, Tasks())
        return
    pool = _Pool(make, begin, end, ahead)
    try:
        pool.start(threads)
        for number in range(begin, end):
            yield pool.take(number)
    finally:
        pool.close()


class _Pool:
    """The threads of one iterator. All that they share is guarded by one lock."""

    def __init__(self, make: Make, begin: int, end: int, ahead: int) -> None:
        self._make, self._ahead = make, ahead
        lock = threading.RLock()
        self._work_to_do, self._item_made = threading.Condition(lock), threading.Condition(lock)
        self._next, self._taken, self._end = begin, begin, end
        self._offers: collections.deque[Tasks] = collections.deque()
        self._made: dict[int, tuple[Any, BaseException | None]] = {}
        self._closed = False
        self._threads: list[threading.Thread] = []

    def start(self, threads: int) -> None:
        # Daemons: an interpreter that ends waits for all other threads before it says that it ends.
        _open.add(self)
        for i in range(threads):
            name = f"gnnjit-loader-{i}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def take(self, number: int) -> Any:
        """Item `number`, once it is made."""
        with self._item_made:
            while number not in self._made:
                self._item_made.wait()
            item, error = self._made.pop(number)
            self._taken = number + 1
            self._work_to_do.notify()
        if error is not None:
            raise error
        return item

    def close(self) -> None:
        """End the threads, each after the task that it is at."""
        if self._closed:  # at exit, before the modules that the rest needs were taken down
            return
        with self._work_to_do:
            self._closed = True
            self._made.clear()
            self._offers.clear()
            self._work_to_do.notify_all()
        _open.discard(self)
        # A garbage collection may run this in any thread: one of these cannot wait for itself.
        if threading.current_thread() not in self._threads:
            for thread in self._threads:
                if thread.ident is not None:
                    thread.join()

    def _offer(self, tasks: Tasks) -> None:
        with self._work_to_do:
            self._offers.append(tasks)
            self._work_to_do.notify()

    def _work(self) -> None:
        while (work := self._next_work()) is not None:
            work()

    def _next_work(self) -> Work | None:
        """Help with an item that was begun, rather than begin one; None to end."""
        with self._work_to_do:
            while not self._closed:
                if self._offers:
                    return self._offers.popleft().help
                if self._next < min(self._end, self._taken + self._ahead):
                    self._next += 1
                    return functools.partial(self._make_one, self._next - 1)
                self._work_to_do.wait()
        return None

    def _make_one(self, number: int) -> None:
        tasks = Tasks(self._offer)
        item, error = None, None
        try:
            item = self._make(number, tasks)
        except BaseException as raised:  # raised again by `take`
            error = raised
            tasks.drop()
        with self._item_made:
            if error is not None:
                self._end = number
            if not self._closed:
                self._made[number] = item, error
            self._item_made.notify()


_open: weakref.WeakSet[_Pool] = weakref.WeakSet()
"""Pools whose threads run."""


@atexit.register
def _close_all() -> None:
    for pool in list(_open):
        pool.close()
