"""Show both arms' progress live on a terminal, in plain lines anywhere else."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.progress import Progress as Bars

from qualab.model.comparison import Comparison
from qualab.model.items import Reply
from qualab.model.names import ArmName
from qualab.model.ports import Progress

LINE_EVERY_S = 10.0


@dataclass(slots=True)
class ArmProgress:
    """One arm's answers in this run."""

    total: int
    done: int
    asked: int = 0
    errors: int = 0
    waits: int = 0
    waited_s: float = 0.0
    """Sum over all requests, at the server's request."""
    started_s: float = field(default_factory=time.monotonic)

    def text(self) -> str:
        elapsed_s = time.monotonic() - self.started_s
        rate = self.asked / elapsed_s if elapsed_s > 0 else 0.0
        waits = f", {self.waits} waits on request of the server ({_duration(self.waited_s)})" if self.waits else ""
        left = self.total - self.done
        eta = "done" if not left else f"ETA {_duration(left / rate)}" if rate else "ETA ?"
        return f"{rate:.1f}/s, {self.errors} errors{waits}, {eta}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class TerminalProgress(Progress):
    """Progress of a run; it remembers the comparison, so that an interrupted one can be named."""

    def __init__(self, console: Console) -> None:
        self.comparison_id = ""
        self._console = console
        self._arms: dict[ArmName, ArmProgress] = {}
        self._bars: Bars | None = None
        self._tasks: dict[ArmName, TaskID] = {}
        self._last_line_s = 0.0

    def phase(self, text: str) -> None:
        self._console.print(f"{text} ...", highlight=False)

    def started(self, comparison: Comparison, *, totals: Mapping[ArmName, int], done: Mapping[ArmName, int]) -> None:
        if comparison.id != self.comparison_id:
            self._console.print(f"Comparison [bold]{comparison.id}[/bold]", highlight=False)
        group = comparison.plan.group
        if group is None or group.id != self.comparison_id:  # a group is gone on with as a whole
            self.comparison_id = comparison.id
        self._arms = {arm: ArmProgress(total=total, done=done[arm]) for arm, total in totals.items() if total}
        self._last_line_s = time.monotonic()
        if self._console.is_terminal and self._arms:
            text = TextColumn("{task.fields[text]}")
            name = TextColumn("{task.description}")
            self._bars = Bars(name, BarColumn(), MofNCompleteColumn(), text, console=self._console)
            self._bars.start()
            for arm, state in self._arms.items():
                self._tasks[arm] = self._bars.add_task(f"{arm:<9}", total=state.total, completed=state.done, text="")

    def answered(self, arm: ArmName, reply: Reply) -> None:
        state = self._arms[arm]
        state.done += 1
        state.asked += 1
        state.errors += not reply.status.is_answer
        self._show(arm)

    def waiting(self, arm: ArmName, seconds: float) -> None:
        state = self._arms[arm]
        state.waits += 1
        state.waited_s += seconds
        self._show(arm)

    def _show(self, arm: ArmName) -> None:
        state = self._arms[arm]
        if self._bars:
            self._bars.update(self._tasks[arm], completed=state.done, text=state.text())
        elif time.monotonic() - self._last_line_s >= LINE_EVERY_S:
            self._print_line()

    def _print_line(self) -> None:
        self._last_line_s = time.monotonic()
        parts = [f"{arm} {state.done}/{state.total} ({state.text()})" for arm, state in self._arms.items()]
        self._console.print("; ".join(parts), highlight=False, soft_wrap=True)

    def finished(self) -> None:
        """Show the end, once."""
        if self._bars:
            self._bars.stop()
            self._bars = None
        elif self._arms:
            self._print_line()
        self._arms = {}
