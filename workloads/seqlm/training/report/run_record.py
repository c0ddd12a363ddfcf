"""Content of a run's record ``metrics.jsonl`` for its report, in memory of a fixed size.

A long run has a million lines. A curve has as many points as a screen has pixels, so evenly spread lines
suffice, and the others are not even parsed.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from seqlm.training.tracking.record_file import RecordLine, lines_of, values_of

from .page import as_number

Lines = Sequence[Mapping[str, Any]]
"""Lines of a run's record."""
Item = TypeVar("Item")

MAX_TRAINING_LINES = 20_000
"""Training lines that are kept, all of a shorter run. A point of a curve is the mean of several."""
MAX_MARKS = 500
"""Evaluations of a split, and events of a kind, that a figure marks."""
MAX_EVENTS_SHOWN = 200
"""Number of the last events that are shown."""
MAX_EVALUATIONS_SHOWN = 100
"""Evaluations that are all shown. Of more, those of ``SplitScores`` are."""
FIRST_EVALUATIONS = 5
LAST_EVALUATIONS = 20
RECENT_LINES = 20
"""Number of the last training lines with the median speed that is shown for a run without results."""
_TRAINING = b'{"kind": "train",'
"""Beginning of a training line, as ``RunLog`` writes it. Other lines are always parsed."""


class Spread(Generic[Item]):
    """Evenly spread items of a stream: all of a short one, else every second, fourth, eighth and so on.

    Args:
        most: largest number of kept items.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._stride = 1
        self.kept: list[Item] = []
        self.count = 0
        """Number of items of the stream so far."""

    @property
    def keeps_next(self) -> bool:
        """Whether the next item is kept."""
        return self.count % self._stride == 0

    def skip(self) -> None:
        """Count an item that is not kept."""
        self.count += 1

    def add(self, item: Item) -> None:
        """Count an item, and keep it if its turn has come."""
        if self.keeps_next:
            self.kept.append(item)
        self.count += 1
        if len(self.kept) > self._most:
            del self.kept[1::2]
            self._stride *= 2


@dataclass
class SplitScores:
    """Evaluations of one split."""

    marks: Spread[Mapping[str, Any]] = field(default_factory=lambda: Spread(MAX_MARKS))
    """Evaluations in the figure of the loss."""
    first: list[Mapping[str, Any]] = field(default_factory=list)
    last: deque[Mapping[str, Any]] = field(default_factory=lambda: deque(maxlen=LAST_EVALUATIONS))
    best: Mapping[str, Any] | None = None
    """Evaluation with the lowest loss; None if none has a loss."""

    def add(self, line: Mapping[str, Any]) -> None:
        self.marks.add(line)
        if len(self.first) < FIRST_EVALUATIONS:
            self.first.append(line)
        self.last.append(line)
        loss = as_number(line.get("eval_loss"))
        if loss is not None and (self.best is None or loss < self.best["eval_loss"]):
            self.best = line

    def shown(self) -> list[Mapping[str, Any]]:
        """Return the first, the best and the last evaluations, each once and in their order."""
        best = [] if self.best is None else [self.best]
        by_identity = {id(line): line for line in (*self.first, *best, *self.last)}
        return sorted(by_identity.values(), key=lambda line: int(line["step"]))


class RunRecord:
    """Record of a run.

    Args:
        path: ``metrics.jsonl``.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if a line is damaged, other than a last line that a kill cut short.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._train = Spread[Mapping[str, Any]](MAX_TRAINING_LINES)
        self._recent = deque[RecordLine](maxlen=RECENT_LINES)
        self._first_scores: list[Mapping[str, Any]] = []
        self._scores: dict[str, SplitScores] = {}
        self.num_evaluations = 0
        self._marked_events: dict[bool, Spread[tuple[int, str]]] = {
            is_checkpoint: Spread(MAX_MARKS) for is_checkpoint in (False, True)
        }
        self.last_events = deque[tuple[int, str]](maxlen=MAX_EVENTS_SHOWN)
        """Steps and texts of the last events."""
        self.num_events = 0
        self.last_step = 0
        for line in lines_of(path):
            if line.content.startswith(_TRAINING) and not self._train.keeps_next:
                self._train.skip()
                self._recent.append(line)
                continue
            values = values_of(path, line)
            if values is not None:
                self._add(line, values)
        self.recent = self._parsed_recent()
        """Last training lines."""
        self.last_step = max([self.last_step, *(values["step"] for values in self.recent)])

    def _add(self, line: RecordLine, values: Mapping[str, Any]) -> None:
        step = values["step"]
        self.last_step = max(self.last_step, step)
        match values["kind"]:
            case "train":
                self._train.add(values)
                self._recent.append(line)
            case "eval":
                self.num_evaluations += 1
                if len(self._first_scores) < MAX_EVALUATIONS_SHOWN:
                    self._first_scores.append(values)
                self._scores.setdefault(str(values.get("split")), SplitScores()).add(values)
            case "event":
                self.num_events += 1
                event = (step, _event_text(values))
                self.last_events.append(event)
                self._marked_events["checkpoint" in event[1]].add(event)

    def _parsed_recent(self) -> list[Mapping[str, Any]]:
        found = [values_of(self._path, line) for line in self._recent]
        return [values for values in found if values is not None]

    @property
    def num_train(self) -> int:
        """Number of training lines."""
        return self._train.count

    @property
    def train(self) -> Lines:
        """Evenly spread training lines, and the last one."""
        kept = self._train.kept
        is_last_kept = not self.recent or (kept and kept[-1] == self.recent[-1])
        return kept if is_last_kept else [*kept, self.recent[-1]]

    @property
    def events(self) -> list[tuple[int, str]]:
        """Evenly spread events, by their steps."""
        return sorted(event for spread in self._marked_events.values() for event in spread.kept)

    @property
    def marked_evaluations(self) -> Lines:
        """Evenly spread evaluations of each split, and its last one."""
        marked: list[Mapping[str, Any]] = []
        for scores in self._scores.values():
            kept = scores.marks.kept
            marked += kept
            if kept[-1] is not scores.last[-1]:
                marked.append(scores.last[-1])
        return marked

    @property
    def shown_evaluations(self) -> Lines:
        """Evaluations of the table: all of a few, else first, best and last ones of each split."""
        if self.num_evaluations <= MAX_EVALUATIONS_SHOWN:
            return self._first_scores
        return [line for scores in self._scores.values() for line in scores.shown()]

    @property
    def last_evaluations(self) -> Lines:
        """Last evaluation of each split."""
        return [scores.last[-1] for scores in self._scores.values()]


def _event_text(line: Mapping[str, Any]) -> str:
    lost = line.get("lost_steps")
    return f"{line.get('event', '')}, lost steps {lost}" if lost else str(line.get("event", ""))
