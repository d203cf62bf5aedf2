"""How a run is watched: a live bar on a terminal, one line per outcome elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from attnspec.launch.happenings import CaseEnded, Happening, JobBegan, Said, TurnBegan, Watcher
from attnspec.plan import Case
from attnspec.record.status import FAILED
from attnspec.units import format_count

_STYLES = {"ok": "green", "unsupported": "dim", "oom": "yellow", "skipped": "dim"} | dict.fromkeys(FAILED, "red")


def case_title(case: Case) -> str:
    """A case in a few words, without its environment."""
    asked, node = case.implementation, case.workload.mask_node
    kernel = " ".join(part for part in (asked.kernel, asked.backend) if part)
    who = kernel if asked.strategy is None else f"{asked.strategy} ({kernel}) x {case.cp_size}"
    return f"{who}, {node.mask} {format_count(node.seqlen_q)} {case.pass_}"


@contextmanager
def watching(console: Console) -> Iterator[Watcher]:
    """A watcher that writes to the console while the block runs."""
    if not console.is_terminal:
        lines = _Lines(console)
        yield lines
        lines.flush_resumed()
        return
    columns = (
        SpinnerColumn("dots" if console.encoding.startswith("utf") else "line"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        lines = _Bar(console, progress)
        yield lines
        lines.flush_resumed()


class _Lines:
    """One line per outcome. Numbers count over all jobs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._ended = self._total = self._resumed = 0

    def __call__(self, happening: Happening) -> None:
        match happening:
            case Said(text=text):
                self.flush_resumed()
                self._print(escape(text))
            case JobBegan():
                self.flush_resumed()
                self._total += len(happening.cases)
                job = happening.job
                env = "".join(f" {name}={value}" for name, value in job.env.items())
                image = "" if job.image is None else f" in {job.image}"
                ranks = "1 rank" if job.world_size == 1 else f"{job.world_size} ranks"
                cases = "1 case" if len(happening.cases) == 1 else f"{len(happening.cases)} cases"
                self._print(escape(f"job {happening.number} of {happening.num_jobs}: {cases}, {ranks}{image}{env}"))
            case TurnBegan():
                self._turn(happening)
            case CaseEnded():
                self._ended += 1
                if happening.resumed:
                    self._resumed += 1
                else:
                    self.flush_resumed()
                    self._print(self._outcome(happening))

    def _turn(self, turn: TurnBegan) -> None:
        """Nothing for a log; a bar names it."""

    def _outcome(self, ended: CaseEnded) -> str:
        style = _STYLES.get(ended.status, "default")
        reason = (ended.reason or "").strip().splitlines()
        told = f": {escape(reason[0])}" if reason else ""
        title = escape(case_title(ended.case))
        return f"[{style}]{ended.status:>11}[/{style}]  {title}{told}  [dim]{self._ended}/{self._total}[/dim]"

    def flush_resumed(self) -> None:
        """Say how many cases in a row were not measured again; they get no lines of their own."""
        if self._resumed:
            cases = "1 case has" if self._resumed == 1 else f"{self._resumed} cases have"
            self._print(f"{cases} an ok record under the same conditions: not measured again")
            self._resumed = 0

    def _print(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)


class _Bar(_Lines):
    """The same lines above a live bar that names the case whose turn it is."""

    def __init__(self, console: Console, progress: Progress) -> None:
        super().__init__(console)
        self._progress = progress
        self._task = progress.add_task("", total=None)

    def __call__(self, happening: Happening) -> None:
        super().__call__(happening)
        self._progress.update(self._task, completed=self._ended, total=self._total or None)

    def _turn(self, turn: TurnBegan) -> None:
        self._progress.update(self._task, description=f"{turn.phase} {escape(case_title(turn.case))}")
