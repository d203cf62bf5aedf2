"""How a run is watched: a live line or two on a terminal, one line per outcome in a log. Not a command."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from attnspec.cli._console import is_log, wrapped
from attnspec.launch.happenings import CaseEnded, Happening, JobBegan, Said, TurnBegan, Watcher
from attnspec.params import switches_said
from attnspec.plan import Case
from attnspec.record.status import FAILED, Status
from attnspec.units import format_count

REDRAWS_PER_SECOND = 4
"""The host shares the machine with what is measured, so it draws seldom, and never because something happened."""
_STYLES = {"ok": "green", "unsupported": "dim", "oom": "yellow", "skipped": "dim"} | dict.fromkeys(FAILED, "red")


def case_title(case: Case) -> str:
    """A case in a few words, without its environment."""
    asked, node = case.implementation, case.workload.mask_node
    kernel = " ".join(part for part in (asked.kernel, asked.backend, switches_said(asked.kernel_params)) if part)
    who = kernel if asked.strategy is None else f"{asked.strategy} ({kernel}) x {case.cp_size}"
    return f"{who}, {node.mask} {format_count(node.seqlen_q)} {case.pass_}"


@contextmanager
def watching(
    console: Console, cases: Sequence[Case] = (), *, now_s: Callable[[], float] = time.monotonic
) -> Iterator[Watcher]:
    """A watcher that writes to the console while the block runs. cases: all that will run, where that is known."""
    if not console.is_terminal or is_log():
        lines = _Lines(console, cases)
        yield lines
        lines.flush_resumed()
        return
    bar = _Bar(console, cases, now_s)
    with Live(bar, console=console, refresh_per_second=REDRAWS_PER_SECOND, transient=True):
        yield bar
        bar.flush_resumed()


class _Lines:
    """One line per outcome. Numbers count over all jobs."""

    def __init__(self, console: Console, cases: Sequence[Case]) -> None:
        self._console = console
        self._known = len(cases)
        self._begun = self._ended = self._resumed = 0

    @property
    def total(self) -> int:
        """Cases to run, as far as is known."""
        return max(self._known, self._begun)

    def __call__(self, happening: Happening) -> None:
        match happening:
            case Said(text=text):
                self.flush_resumed()
                self._print(escape(text))
            case JobBegan():
                self.flush_resumed()
                self._begun += len(happening.cases)
                job = happening.job
                env = "".join(f" {name}={value}" for name, value in job.env.items())
                image = "" if job.image is None else f" in {job.image}"
                ranks = "1 rank" if job.world_size == 1 else f"{job.world_size} ranks"
                cases = "1 case" if len(happening.cases) == 1 else f"{len(happening.cases)} cases"
                self._print(escape(f"job {happening.number} of {happening.num_jobs}: {cases}, {ranks}{image}{env}"))
            case TurnBegan():
                pass  # nothing for a log; a bar names it
            case CaseEnded():
                self._ended += 1
                if happening.resumed:
                    self._resumed += 1
                else:
                    self.flush_resumed()
                    self._print(self._outcome(happening))

    def _outcome(self, ended: CaseEnded) -> str:
        style = _STYLES.get(ended.status, "default")
        reason = (ended.reason or "").strip().splitlines()
        told = f": {escape(reason[0])}" if reason else ""
        title = escape(case_title(ended.case))
        return f"[{style}]{ended.status:>11}[/{style}]  {title}{told}  [dim]{self._ended}/{self.total}[/dim]"

    def flush_resumed(self) -> None:
        """Say how many cases in a row were not measured again; they get no lines of their own."""
        if self._resumed:
            cases = "1 case has" if self._resumed == 1 else f"{self._resumed} cases have"
            self._print(f"{cases} an ok record under the same conditions: not measured again")
            self._resumed = 0

    def _print(self, markup: str) -> None:
        self._console.print(markup, highlight=False, soft_wrap=True)


class _Bar(_Lines):
    """The same lines above a live part: how far it is, how cases ended, the time left, whose turn it is."""

    def __init__(self, console: Console, cases: Sequence[Case], now_s: Callable[[], float]) -> None:
        super().__init__(console, cases)
        self._ends: Counter[str] = Counter()
        self._now_s = now_s
        self._left = _TimeLeft(cases, now_s())
        unicode = console.encoding.startswith("utf")
        self._spinner = Spinner("dots" if unicode else "line")
        self._job = self._turn = ""

    def __call__(self, happening: Happening) -> None:
        super().__call__(happening)
        match happening:
            case JobBegan():
                self._job = f"job {happening.number}/{happening.num_jobs}"
                self._turn = "starting"
            case TurnBegan():
                self._turn = f"{happening.phase} {case_title(happening.case)}"
            case CaseEnded():
                self._ends[happening.status] += 1
                self._left.ended(happening.case, resumed=happening.resumed, now_s=self._now_s())

    def _print(self, markup: str) -> None:
        text = Text.from_markup(markup)
        first, *rest = wrapped(text.plain, self._console.width)
        self._console.print(text[: len(first)], highlight=False, no_wrap=True, overflow="ignore", crop=False)
        for part in rest:
            self._console.print(Text(part, style="dim"), no_wrap=True, overflow="ignore", crop=False)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = options.max_width
        counts, left = self._counts(), self._left.told(self._now_s())
        done = f"{self._ended}/{self.total}"
        grid = Table.grid(padding=(0, 1))
        cells: list[Text | Spinner | ProgressBar] = [self._spinner]
        taken = 2 + len(done) + 1 + counts.cell_len + 1
        if room - taken >= 10:
            width = min(24, room - taken - 1)
            if left and room - taken - len(left) - 1 >= 10:
                width = min(24, room - taken - len(left) - 2)
            cells.append(ProgressBar(total=self.total or None, completed=self._ended, width=width))
            taken += width + 1
        cells += [Text(done), counts]
        if left and taken + len(left) + 1 <= room:
            cells.append(Text(left, style="dim"))
        for _ in cells:
            grid.add_column(no_wrap=True)
        grid.add_row(*cells)
        yield grid
        turn = Text(f"  {self._job}  {self._turn}" if self._job else "  preparing", style="dim")
        turn.truncate(room, overflow="ellipsis")
        yield turn

    def _counts(self) -> Text:
        """ok, X (unsupported, out of memory, skipped) and failed."""
        failed = sum(self._ends[status] for status in FAILED)
        ok = self._ends[Status.OK]
        text = Text(f"{ok} ok", style="green")
        text.append(f" {sum(self._ends.values()) - ok - failed} X", style="yellow")
        return text.append(f" {failed} failed", style="bold red" if failed else "dim")


class _TimeLeft:
    """How long the rest will take, from what was measured so far; a case counts by its packs."""

    def __init__(self, cases: Sequence[Case], started_s: float) -> None:
        self._weights = {case.case_id: _weight(case) for case in cases}
        self._left = sum(self._weights.values())
        self._done = 0
        self._started_s = self._last_s = started_s

    def ended(self, case: Case, *, resumed: bool, now_s: float) -> None:
        """A case has its outcome. Resumed ones take no time and say nothing about the others."""
        weight = self._weights.pop(case.case_id, 0)
        self._left -= weight
        if resumed:
            if not self._done:
                self._started_s = now_s
        else:
            self._done += weight
        self._last_s = now_s

    def told(self, now_s: float) -> str:
        """In words; empty where nothing can be said yet."""
        if not self._done or not self._left:
            return ""
        # Cases of a workload end together, so the pace is that up to the last ending.
        pace = (self._last_s - self._started_s) / self._done
        return f"about {duration(max(0.0, pace * self._left - (now_s - self._last_s)))} left"


def duration(seconds: float) -> str:
    """A duration as people say it.

    >>> duration(42), duration(185), duration(7500)
    ('42 s', '3 min', '2.1 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _weight(case: Case) -> int:
    return case.workload.mask_node.sample.num_packs
