"""Report of slow processes during a run: in its log, its metrics and, if it may, to the job's supervisor."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from seqlm.training.processes import Processes
from seqlm.training.tracking.record_file import WARNING
from seqlm.training.tracking.run_log import RunLog
from seqlm.training.tracking.training_metrics import TrainingMetrics

from .faults import SickHardwareError
from .pass_times import SharedTimes
from .place import Place, place_of
from .slow_processes import SlowProcess, SlowProcesses
from .unfit_nodes import report_unfit


class HardwareWatch:
    """Watch over the hardware of all processes of a run. Every process has one, and calls its methods.

    Args:
        here: this process.
        log: record of the run.
        metrics: published metrics of this process.
        run_dir: folder of the run.
        reports_nodes: whether the supervisor of the job learns which nodes to leave out.
        kinds: name of the device of each process.
    """

    def __init__(
        self,
        here: Processes,
        log: RunLog,
        metrics: TrainingMetrics,
        run_dir: Path,
        *,
        reports_nodes: bool,
        kinds: Sequence[str],
    ) -> None:
        self._here = here
        self._log = log
        self._metrics = metrics
        self._run_dir = run_dir
        self._reports_nodes = reports_nodes
        self._slow = SlowProcesses(kinds)
        self._places: dict[int, Place] = {}
        """Places of the processes that are slow, by process."""

    def look(self, step: int, times: SharedTimes | None) -> None:
        """Report the processes that have become slow, and those that are slow no longer.

        Args:
            step: number of the logged step.
            times: times of the processes' passes; None if they are not measured.

        Raises:
            OSError: on every process, if the report to the supervisor cannot be written.
        """
        if times is None:
            return
        changes = self._slow.update(times)
        for process in changes.recovered:
            place = self._places.pop(process)
            self._log.event(step, f"{place} is slow no longer")
            self._metrics.slow_process(process, place.node, place.gpu_index, None)
        if not changes.slow:
            return
        slow = {one.process: one for one in changes.slow}
        mine: dict[int, dict[str, object]] = {}
        if self._here.rank in slow:
            mine = {self._here.rank: place_of(self._here).to_dict()}
        reasons: dict[str, str] = {}
        for process, values in sorted(self._here.gather(mine).items()):
            place = Place.of(values)
            self._places[process] = place
            text = _slow_text(place, slow[process])
            reasons[place.node] = text
            self._log.event(step, f"{WARNING}{text}; all others wait for it. {_ADVICE}")
            self._metrics.slow_process(process, place.node, place.gpu_index, slow[process].ratio)
        if self._reports_nodes:
            self._here.first_does(partial(report_unfit, self._run_dir, reasons))

    def sick(self, step: int, error: SickHardwareError) -> None:
        """Report the hardware that has probably spoilt a step.

        Raises:
            OSError: on every process, if the report to the supervisor cannot be written.
        """
        self._log.event(step, f"{WARNING}{error}")
        if self._reports_nodes and error.reasons:
            self._here.first_does(partial(report_unfit, self._run_dir, error.reasons))


_ADVICE = "Look at the clocks, temperature and Xid errors of its GPU (docs/runbook.md)"


def _slow_text(place: Place, slow: SlowProcess) -> str:
    return (
        f"{place} has been slow for {slow.seconds:.0f} s: its packs take {slow.ratio - 1:.0%} longer than "
        "the median"
    )
