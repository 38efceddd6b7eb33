"""Event loops that share one virtual clock, so that real asyncio code runs deterministically.

Each boot of a simulated node has a `SimLoop` of its own; futures, tasks and timeouts on it are asyncio's. All
loops put their callbacks into the queues of one `World`, which runs them by virtual time, and those of one
time in the order in which they were scheduled. A loop whose node crashed is dead for good: nothing that was
scheduled on it runs, and every late call on it (from a `finally` block or a finaliser) does nothing.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any, NoReturn

from tests.simulation.disk import SimCrash

if TYPE_CHECKING:
    from tests.simulation.node import SimNode
    from tests.simulation.transport import SimServer

RUNNING, PAUSED, DEAD = 0, 1, 2


class Call:
    """One event of the simulator itself; `dead` runs in its place when the loop it is for has died."""

    __slots__ = ("_args", "_callback", "_context", "dead")

    def __init__(
        self,
        context: contextvars.Context,
        callback: Callable[..., object],
        args: tuple[Any, ...] = (),
        dead: Callable[[], None] | None = None,
    ) -> None:
        self._context = context
        self._callback: Callable[..., object] | None = callback
        self._args: Sequence[Any] = args
        self.dead = dead

    def cancel(self) -> None:
        self._callback = None


class SimHandle(asyncio.Handle):
    """asyncio's Handle with a constructor that costs half as much."""

    __slots__ = ()
    _callback: Callable[..., object] | None
    _context: contextvars.Context

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: SimLoop,
        context: contextvars.Context | None,
    ) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None


class SimTimer(asyncio.TimerHandle):
    """asyncio's TimerHandle; `_when` is in the node's own time, which the queue's time may leave behind."""

    __slots__ = ()
    _callback: Callable[..., object] | None
    _context: contextvars.Context
    _when: float

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: SimLoop,
        context: contextvars.Context | None,
    ) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None
        self._when = when
        self._scheduled = True


Job = tuple[Callable[..., Any], tuple[Any, ...], asyncio.Future[Any]]
Entry = tuple[float, int, "SimLoop | None", "Call | SimHandle | SimTimer"]


class SimExecutor(Executor):
    """Stands for a thread pool: `SimLoop.run_in_executor` keeps one queue for each executor object."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        raise RuntimeError("a simulated executor is used through loop.run_in_executor only")


class Worker:
    """One simulated thread: jobs in order, each taking a while and doing its work at one moment within it."""

    __slots__ = ("_busy", "_jobs", "_loop")

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._jobs: deque[Job] = deque()
        self._busy = False

    def submit(self, fn: Callable[..., Any], args: tuple[Any, ...], future: asyncio.Future[Any]) -> None:
        self._jobs.append((fn, args, future))
        if not self._busy:
            self._next()

    def _next(self) -> None:
        jobs = self._jobs
        while jobs and jobs[0][2].cancelled():
            jobs.popleft()
        self._busy = bool(jobs)
        if jobs:
            job = jobs.popleft()
            moment, end = self._loop.node.disk.job_times()
            self._after(moment, self._work, (job, end - moment))

    def _after(self, delay: float, step: Callable[..., None], args: tuple[Any, ...]) -> None:
        world = self._loop.world
        world.push(world.now + delay, self._loop, Call(world.context, self._gate, (step, args)))

    def _gate(self, step: Callable[..., None], args: tuple[Any, ...]) -> None:
        disk = self._loop.node.disk
        if disk.stalled:
            disk.parked.append(lambda: self._after(0.0, step, args))
        else:
            step(*args)

    def _work(self, job: Job, rest: float) -> None:
        fn, args, future = job
        result: Any = None
        error: BaseException | None = None
        asyncio._set_running_loop(None)
        try:
            result = fn(*args)
        except (SystemExit, KeyboardInterrupt, SimCrash):
            raise
        except BaseException as raised:
            error = raised
        finally:
            asyncio._set_running_loop(self._loop)
        self._after(rest, self._finish, (future, result, error))

    def _finish(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        if not future.done():
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
        self._next()


class SimLoop(asyncio.AbstractEventLoop):
    """The event loop of one boot of one node. What is not defined here raises NotImplementedError."""

    def __init__(self, node: SimNode) -> None:
        self.node = node
        self.world = node.world
        self.state = RUNNING
        self.backlog: list[Entry] = []
        self._clock = node.clock
        self._soon = node.world.soon.append
        self._next_seq = node.world.next_seq
        self._workers: dict[Executor | None, Worker] = {}
        self._tasks: list[asyncio.Task[Any]] = []
        self._tasks_made = 0
        self._sweep_at = 64

    def __repr__(self) -> str:
        return f"<SimLoop node={self.node.id} boot={self.node.boot} state={self.state}>"

    def time(self) -> float:
        # `Clock.read`, written out: this is called a dozen times for every event.
        clock = self._clock
        return clock._local + (self.world.now - clock._true) * clock._rate

    get_debug = staticmethod(bool)
    """False. Each future and each task asks as it is made, and `bool()` runs no Python."""

    def is_running(self) -> bool:
        return self.state == RUNNING

    def is_closed(self) -> bool:
        return self.state == DEAD

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = SimHandle(callback, args, self, context)
        self._soon((self.world.now, self._next_seq(), self, handle))
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = SimTimer(when, callback, args, self, context)
        self.world.push(self._clock.when(when), self, timer)
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        self.world.timer_cancelled()

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self,
        coro: Coroutine[Any, Any, Any],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
        **options: Any,
    ) -> asyncio.Task[Any]:
        self._tasks_made += 1
        if len(self._tasks) >= self._sweep_at:
            self._sweep()
        # asyncio's own default name counts over the whole process, so it would differ from run to run.
        task = asyncio.Task(
            coro, loop=self, name=name or f"task-{self._tasks_made}", context=context, **options
        )
        # asyncio keeps tasks by weak references only: which ones die would depend on the garbage collector.
        self._tasks.append(task)
        if self.state == DEAD:
            bury(task)
        return task

    def _sweep(self) -> None:
        self._tasks = [task for task in self._tasks if not task.done() or task._log_traceback]
        self._sweep_at = 2 * len(self._tasks) + 64

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future = self.create_future()
        if self.state != DEAD:
            worker = self._workers.get(executor)
            if worker is None:
                worker = self._workers[executor] = Worker(self)
            worker.submit(func, args, future)
        return future

    async def create_server(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | Sequence[str] | None = None,
        port: int | None = None,
        **options: Any,
    ) -> SimServer:
        refuse_options(options)
        network = self.world.network
        server = network.listen(self, protocol_factory, port or 0)
        server.accepts = network.early_ports or options.get("start_serving", True)
        return server

    async def create_connection(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        **options: Any,
    ) -> tuple[Any, Any]:
        refuse_options(options)
        if host is None or port is None:
            raise ValueError("a simulated connection needs a host and a port")
        transport, protocol = await self.world.network.connect(self, protocol_factory, host, port)
        return transport, protocol

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self.state != DEAD:
            self.world.fail(self.node, str(context.get("message")), context.get("exception"))

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def stop(self) -> NoReturn:
        raise RuntimeError("a simulated loop is stopped by its node: pause() or crash()")

    def report_unretrieved(self) -> None:
        """Record every task that failed without anybody looking at its exception."""
        for task in self._tasks:
            if task.done() and task._log_traceback:
                self.world.fail(self.node, f"nobody awaited {task.get_name()}", task.exception())

    def bury(self) -> None:
        """End the coroutines that are left, in order, now that nothing they call has any effect."""
        for task in self._tasks:
            bury(task)
        self._tasks.clear()


def bury(task: asyncio.Task[Any]) -> None:
    """Close a task's coroutine here, quietly, and not whenever the garbage collector comes by."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    if task.done():
        task._log_traceback = False
        return
    try:
        task.get_coro().close()
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException:  # a finaliser that awaits, or touches the crashed disk, cannot matter any more
        return


def refuse_options(options: dict[str, Any]) -> None:
    for name in ("ssl", "sock", "local_addr"):
        if options.get(name) is not None:
            raise NotImplementedError(f"the simulated network has no {name}=")
