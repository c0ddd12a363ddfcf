"""Training of a run: start or resumption, the loop over its steps, and the results at its end."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict
from functools import partial
from typing import Any

import transformers

from seqlm.training.tracking.console import lines_may_be_lost
from seqlm.training.tracking.metrics_port import PORT
from seqlm.training.tracking.mirror import RunStatus
from seqlm.training.tracking.record_file import WARNING
from seqlm.training.tracking.resumption import changes
from seqlm.training.tracking.run_log import (
    METRICS_FILE,
    REPORT_FILE,
    RESULTS_FILE,
    RunLog,
    files_line,
    write_results,
)
from seqlm.training.tracking.training_metrics import TrainingMetrics

from .checkpoint import Checkpointer
from .command_line import RunError, Stopped, signals_to, tell
from .config import RunConfig
from .device_runtime import COMPILE_CACHE
from .hardware import peak_flops
from .health.faults import SickHardwareError
from .health.watch import HardwareWatch
from .heartbeat import STARTED, beat
from .kernels import KERNELS_FIELD, listed
from .memory.choice import states_in_memory
from .objective import Evaluation, Guard, Objective, Place
from .processes import Processes, exclusive, processes
from .records import RecordSplit
from .saved_model import full_weights
from .step.flags import FlagCounts, Flags
from .step.loader import StepPacks, read_ahead
from .step.start import START_FIELD
from .tracking.final_scores import SCORED, announcement, opened_test_split, scored_text
from .tracking.progress import Progress, Window
from .tracking.totals import steady_rates, totals, work_of
from .trainer import StepResult, Trainer


def train(objective: Objective, here: Processes) -> dict[str, Any]:
    """Train to ``train.max_steps``, evaluate, write model and results; return the results.

    Raises:
        Stopped: after a signal, once the state is saved.
        ValueError: for data, weights or checkpoints that do not fit the configuration.
        RunError: if the loss is not finite, a checkpoint cannot be written, or the guard ends the run.
        SickHardwareError: if the loss is not finite, and the hardware of a process is the likely cause.
    """
    began = time.time()
    config = objective.config
    run_dir = config.run_dir
    validation = objective.open("validation")
    guard = objective.guard()
    # With adapters, a state needs the frozen weights, which are also a part of the run's identity.
    restores_first = objective.trains_all and here.runtime.restores_first
    checkpoints = _checkpointer(objective, here) if restores_first else None
    trainer = Trainer(objective, here, checkpointer=checkpoints)
    checkpoints = checkpoints or _checkpointer(objective, here)
    with checkpoints as checkpointer, signals_to(here.stop):
        saved = trainer.saved
        if not restores_first:
            saved = checkpointer.restore(trainer.model, trainer.optimizers)
        if saved is not None:
            trainer.progress = Progress.of(saved["progress"])
        progress = trainer.progress
        if progress.step > config.train.max_steps:
            raise ValueError(
                f"train.max_steps: got {config.train.max_steps}, but {run_dir} has come to step "
                f"{progress.step}; give at least that, or another name"
            )
        if progress.step == config.train.max_steps and (run_dir / RESULTS_FILE).exists():
            return dict(json.loads((run_dir / RESULTS_FILE).read_text()))
        open_log = partial(
            RunLog,
            run_dir,
            config=config.to_dict(),
            tracking=config.tracking,
            max_steps=config.train.max_steps,
            tokens=objective.split.tokens,
            defers_errors=True,
        )
        log = here.first_does(partial(open_log, enabled=True)) or open_log(enabled=False)
        lost_steps = here.first_does(partial(log.truncate_after, progress.step)) or 0
        if saved is not None or lost_steps:
            log.event(progress.step, "resumed", lost_steps=lost_steps)
        _log_memory(checkpointer, log, progress.step)
        if saved is not None:
            _log_changes(log, trainer, saved)
        if trainer.shares_text:
            log.event(progress.step, f"packs of a step: {trainer.shares_text}")
        metrics = _metrics(trainer, lost_steps)
        reports_nodes = config.train.exclude_unfit_nodes
        watch = HardwareWatch(
            here, log, metrics, run_dir, reports_nodes=reports_nodes, kinds=trainer.device_kinds
        )
        status: RunStatus = "FAILED"
        try:
            start_seconds = time.time() - float(os.environ.get(STARTED, began))
            with metrics.served(os.environ.get(PORT) if here.is_first else None):
                with closing(read_ahead(trainer.steps())) as steps:
                    loop = _TrainingLoop(
                        trainer, validation, guard, checkpointer, log, metrics, watch
                    )
                    loop.run(steps)
                ended = time.monotonic()
                results = {
                    "start_seconds": start_seconds,
                    **_finish(trainer, validation, log, metrics),
                }
                results["end_seconds"] = time.monotonic() - ended
            status = "FINISHED"
        except Stopped:
            status = "KILLED"
            log.stopped(progress.step, here.stop.name)
            if here.is_first:
                tell(
                    f"stopped by {here.stop.name}: step {progress.step} is saved in {run_dir}; "
                    "the same command continues from there"
                )
            raise
        except SickHardwareError as error:
            watch.sick(progress.step, error)
            raise
        finally:
            beat("ending", slow=True)
            log.close(status)
    if here.is_first:
        write_results(run_dir, results)
    return results


def _checkpointer(objective: Objective, here: Processes) -> Checkpointer:
    """Return the checkpoints of a run, and its states in memory."""
    config = objective.config
    identity = objective.identity(here)
    return Checkpointer(
        config.run_dir / "checkpoints",
        here,
        identity,
        config.train.keep_checkpoints,
        trains_all=objective.trains_all,
        memory=states_in_memory(config, here, identity),
    )


def _log_changes(log: RunLog, trainer: Trainer, saved: Mapping[str, Any]) -> None:
    """Log what makes the losses of a resumed run differ from those without the interruption.

    Args:
        log: record of the run.
        trainer: trainer of this start.
        saved: content of the checkpoint. Checkpoints of earlier versions name no kernels.
    """
    environment = trainer.environment()
    found = changes(saved, trainer.config.to_dict(), environment, trainer.here.world_size)
    if found:
        log.event(
            trainer.progress.step,
            f"changed: {'; '.join(found)}. Losses are no longer equal bit for bit to those of a run without "
            "this change",
        )
    earlier = saved["environment"].get(KERNELS_FIELD, listed(()))
    now = listed(trainer.kernels)
    if now != earlier:
        log.event(
            trainer.progress.step,
            f"kernels: {now}; until here {earlier}. Losses are no longer equal bit for bit to those of a run "
            "without this change",
        )


def _log_memory(checkpointer: Checkpointer, log: RunLog, step: int) -> None:
    """Log what has happened to the states in memory."""
    if checkpointer.memory is not None:
        for message in checkpointer.memory.take_messages():
            log.event(step, message)


def _metrics(trainer: Trainer, lost_steps: int) -> TrainingMetrics:
    """Return the published metrics of a start that repeats ``lost_steps`` steps."""
    peak = peak_flops(trainer.here.device)
    metrics = TrainingMetrics(
        run=trainer.config.name,
        max_steps=trainer.config.train.max_steps,
        processes=trainer.here.world_size,
        peak_flops=None if peak is None else peak * trainer.here.world_size,
        num_flops=trainer.num_flops,
    )
    metrics.started_at(trainer.progress.step, lost_steps)
    return metrics


class _TrainingLoop:
    """Loop over the steps of a run, from its position to ``train.max_steps``.

    All processes of a run execute the same loop. Saves, evaluations and the decision to stop are collective,
    so their order must be the same on every process.

    Args:
        trainer: model, optimizers and progress.
        validation: split that is scored every ``train.eval_every_steps``.
        guard: records that are scored at the same steps and may end the run; None scores no others.
        checkpointer: writer of the checkpoints.
        log: record of the run.
        metrics: published metrics of this process.
        watch: watch over the hardware of all processes.
    """

    def __init__(
        self,
        trainer: Trainer,
        validation: RecordSplit,
        guard: Guard | None,
        checkpointer: Checkpointer,
        log: RunLog,
        metrics: TrainingMetrics,
        watch: HardwareWatch,
    ) -> None:
        self._trainer = trainer
        self._validation = validation
        self._guard = guard
        self._checkpointer = checkpointer
        self._log = log
        self._metrics = metrics
        self._watch = watch
        self._config = trainer.config.train
        self._here = trainer.here
        self._progress = trainer.progress
        self._earlier_seconds = trainer.progress.seconds
        """Training time of former starts."""
        self._started = time.monotonic()
        self._save_began = self._started
        self._last_saved: int | None = None
        """Step of this start's last save."""
        self._saving_since: int | None = None
        """Step of the save under way; None if there is none."""
        self._window = Window(
            trainer.progress, trainer.num_flops, self._here.device, self._here.world_size
        )
        self._environment = trainer.environment()

    def run(self, steps: Iterator[StepPacks]) -> None:
        """Train to the last step.

        Args:
            steps: packs of each step, from the run's position on.

        Raises:
            Stopped: after a signal, once the state is saved.
            RunError: if the guard ends the run, once the state is saved.
        """
        try:
            if self._progress.step == 0:
                self._log.say(announcement(self._trainer, self._validation))
                self._window.begin()
            if self._guard is not None and self._progress.guard_loss is None:
                self._guard_problem(self._guard)
            while self._progress.step < self._config.max_steps:
                self._advance(steps)
        except Stopped:
            self._ensure_saved()
            raise
        self._complete_save()
        self._update_seconds()

    def _advance(self, steps: Iterator[StepPacks]) -> None:
        """Make one step, and all that is due after it."""
        self._make_step(steps)
        self._follow_flags()
        if self._is_last or self._is_due(self._config.save_every_steps):
            self._save()
        elif self._is_due_in_memory:
            self._save_in_memory()
        evaluates = self._is_due(self._config.eval_every_steps)
        if evaluates and not self._is_last:  # after the last step, all of the split is scored
            self._evaluate()
        if self._guard is not None and (evaluates or self._is_last):
            self._check_guard(self._guard)

    def _make_step(self, steps: Iterator[StepPacks]) -> None:
        self._window.next_step()
        self._trainer.beat()  # ends the slow phase of a checkpoint or an evaluation
        with self._metrics.timing("data_wait"):
            packs = next(steps)
        result: StepResult | None = None
        logs = self._is_logged(self._progress.step + 1)
        with self._metrics.timing("step"):
            self._trainer.step(packs, self._flags(), shares_times=logs)
            saves = self._is_due(self._config.save_every_steps)
            evaluates = self._is_due(self._config.eval_every_steps)
            if logs or saves or evaluates or self._is_due_in_memory:
                result = self._trainer.settle()
        self._metrics.made_step(self._progress.step, packs)
        if logs:
            assert result is not None  # a step has been made
            self._log_step(result)

    def _is_logged(self, step: int) -> bool:
        is_due = step % self._config.log_every_steps == 0
        return step == 1 or step == self._config.max_steps or is_due

    @property
    def _is_last(self) -> bool:
        return self._progress.step == self._config.max_steps

    def _is_due(self, every_steps: int) -> bool:
        return self._progress.step % every_steps == 0

    @property
    def _is_due_in_memory(self) -> bool:
        memory = self._checkpointer.memory
        return memory is not None and memory.is_due(self._progress.step)

    def _log_step(self, result: StepResult) -> None:
        self._update_seconds()
        times = self._trainer.pass_times
        shared = {} if times is None else times.logged()
        values = {**asdict(result), **self._window.measure(), **shared}
        self._log.train(self._progress.step, **values)
        self._metrics.logged(values)
        self._watch.look(self._progress.step, times)

    def _update_seconds(self) -> None:
        self._progress.seconds = self._earlier_seconds + time.monotonic() - self._started

    def _flags(self) -> Flags:
        """Return the flags of this process."""
        return Flags(
            self._here.stop.received,
            self._checkpointer.is_written,
            self._log.failure is not None,
        )

    def _flag_counts(self) -> FlagCounts | None:
        """Return the sums of the flags that were read last, the same on every process."""
        if self._here.world_size > 1:
            return self._trainer.flag_counts
        # A single process need not wait for the sums.
        return FlagCounts(self._progress.step, *map(int, self._flags()))

    def _follow_flags(self) -> None:
        """Complete a save that every process has written, and stop if one of them got a signal.

        With several processes, the flags are those of one or two steps before.

        Raises:
            Stopped: on every process, if one of them got a signal.
            OSError: on every process, if the record of the run cannot be written.
        """
        counts = self._flag_counts()
        if counts is None:
            return
        if counts.failed:
            self._here.raise_from_first(self._log.failure)
        # Flags of earlier steps are about the save before.
        is_of_save = self._saving_since is not None and counts.step > self._saving_since
        if is_of_save and counts.written == self._here.world_size:
            self._complete_save()
        if counts.stop:
            raise Stopped

    def _save(self) -> None:
        """Start writing a checkpoint of this step."""
        self._trainer.settle()
        self._complete_save()  # the flags of frequent saves come after the next save
        self._update_seconds()
        with self._metrics.timing("checkpoint_stall"):
            self._checkpointer.save(
                self._progress.step,
                self._trainer.model,
                self._trainer.optimizers,
                self._document(),
            )
        self._save_began = time.monotonic()
        self._last_saved = self._progress.step
        self._saving_since = self._progress.step
        self._window.begin()

    def _save_in_memory(self) -> None:
        """Keep this step in memory, where it does not count as saved."""
        self._update_seconds()
        with self._metrics.timing("memory_state_stall"):
            self._checkpointer.save_in_memory(
                self._progress.step,
                self._trainer.model,
                self._trainer.optimizers,
                self._document(),
            )
        _log_memory(self._checkpointer, self._log, self._progress.step)

    def _document(self) -> dict[str, Any]:
        """Return the entries of ``checkpoint.json`` that describe this step."""
        return {
            "progress": asdict(self._progress),
            "config": self._trainer.config.to_dict(),
            "model_config": self._trainer.objective.model_config.to_dict(),
            "environment": self._environment,
            START_FIELD: self._trainer.start_sha256,
        }

    def _finish_save(self) -> int | None:
        """Wait until the checkpoint under way is complete; return its step, None if there was none."""
        with self._metrics.timing("checkpoint_stall"):
            saved = self._checkpointer.finish()
        self._saving_since = None
        self._window.begin()
        if saved is not None:
            self._metrics.saved(saved, time.monotonic() - self._save_began)
        return saved

    def _complete_save(self) -> None:
        """Wait until the checkpoint under way is complete, and log it."""
        saved = self._finish_save()
        if saved is not None:
            self._log.event(saved, "checkpoint")

    def _ensure_saved(self) -> None:
        """Save this step unless a checkpoint of it exists, and wait until it is complete."""
        if self._last_saved != self._progress.step:
            self._save()
        self._finish_save()

    def _evaluate(self) -> None:
        """Score the validation split."""
        with self._metrics.timing("evaluation"):
            found = self._trainer.evaluate(self._validation, self._config.eval_packs)
        self._log.evaluation(self._progress.step, "validation", **found.values)
        self._metrics.evaluated(found.values["eval_loss"])
        self._window.begin()

    def _check_guard(self, guard: Guard) -> None:
        """Score the guard's records.

        Raises:
            RunError: if their loss has risen too far and the guard ends runs, once the state is saved.
        """
        problem = self._guard_problem(guard)
        if problem is None or self._is_last:
            return
        self._ensure_saved()
        raise RunError(
            f"{problem}; step {self._progress.step} is saved in {self._trainer.config.run_dir}. Start again "
            f"with a lower {self._trainer.objective.lr_field} or more general {guard.split.records}, or "
            "continue this one with guard.stop=false"
        )

    def _guard_problem(self, guard: Guard) -> str | None:
        """Score the guard's records; return the problem if their loss has risen and the guard ends runs."""
        with self._metrics.timing("evaluation"):
            found = self._trainer.evaluate(guard.split, self._config.eval_packs)
        self._window.begin()
        loss = found.values["eval_loss"]
        if self._progress.guard_loss is None:
            self._progress.guard_loss = loss
        increase = loss / self._progress.guard_loss - 1
        self._log.evaluation(self._progress.step, "general", eval_loss=loss, loss_increase=increase)
        if increase <= guard.max_increase:
            return None
        problem = (
            f"the loss on general {guard.split.records} rose by {increase:.1%} since the start "
            f"(guard.max_increase is {guard.max_increase:.1%})"
        )
        self._log.event(self._progress.step, f"{WARNING}{problem}")
        return problem if guard.stop else None


def _finish(
    trainer: Trainer, validation: RecordSplit, log: RunLog, metrics: TrainingMetrics
) -> dict[str, Any]:
    """Write the trained model for others to load, score it, and return the results."""
    config = trainer.config
    here = trainer.here
    progress = trainer.progress
    objective = trainer.objective
    _write_model(trainer)
    with metrics.timing("evaluation"):
        valid = trainer.evaluate(validation, objective.final_packs)
    log.evaluation(progress.step, "validation", **valid.values)
    metrics.evaluated(valid.values["eval_loss"])
    test: Evaluation | None = None
    scored = scored_text(valid.num_records, validation.num_units, validation.records)
    held_out = opened_test_split(objective)
    if held_out is not None:
        test = trainer.evaluate(held_out, objective.final_packs)
        log.evaluation(progress.step, "test", **test.values)
        of_test = scored_text(test.num_records, held_out.num_units, held_out.records)
        scored = f"{scored}, test {of_test}"
    here.first_does(partial(objective.record, config.run_dir, valid, test))
    work = work_of(trainer)
    trainer.release()  # the written model needs the memory
    with metrics.timing("evaluation"):
        written = objective.score_written(config.run_dir, Place(here, trainer.shape, trainer.dtype))
    if written:
        log.evaluation(progress.step, "validation" if test is None else "test", **written)
    here.raise_from_first(log.failure)
    return {
        **totals(trainer, work),
        **steady_rates(trainer, work),
        **valid.values,
        "eval_samples": valid.num_records,
        SCORED: scored,
        "eval_runtime": valid.seconds,
        "eval_samples_per_second": valid.num_records / valid.seconds,
        **objective.results(valid, test),
        **written,
        START_FIELD: trainer.start_sha256,
        "parameters": work.parameters,
        "world_size": here.world_size,
        "environment": trainer.environment(),
    }


def _write_model(trainer: Trainer) -> None:
    beat("writing the model", slow=True)
    weights = full_weights(trainer.model, trained_only=not trainer.objective.trains_all)
    run_dir = trainer.config.run_dir
    # The other processes wait here: a wait on the host may last longer than one on the device.
    trainer.here.first_does(
        partial(trainer.objective.write_model, run_dir, weights, trainer.here.device)
    )


def train_run(
    config: RunConfig, make_objective: Callable[[], Objective], write_report: Callable[[], object]
) -> None:
    """Train in this process, which is one of the run's, and print where the results are.

    Args:
        config: configuration of the run.
        make_objective: function that returns the run's objective; called once the run is locked.
        write_report: function that writes the run's report; called by the first process at the end.
    """
    beat("starting", slow=True)
    transformers.utils.logging.disable_progress_bar()  # every process would draw its own
    run_dir = config.run_dir
    when_held = (
        f"{run_dir} is being trained by another process; wait for it, stop it (its workers too), or choose "
        "another 'name'"
    )
    with (
        lines_may_be_lost(),
        processes(compile_cache=run_dir / COMPILE_CACHE) as here,
        exclusive(run_dir / METRICS_FILE, here, when_held),
    ):
        is_even = config.train.pack_shares == "even"
        if here.is_first and is_even and config.packs_per_step % here.world_size:
            print(
                f"warning: a step has {config.packs_per_step} packs for {here.world_size} processes, so some "
                "idle in its last round; choose train.tokens_per_pack or train.tokens_per_step so that it "
                "divides evenly",
                file=sys.stderr,
            )
        objective = make_objective()
        results = train(objective, here)
        if here.is_first:
            write_report()
            print(_summary(objective, results))


def _summary(objective: Objective, results: Mapping[str, Any]) -> str:
    """Return the lines that end the output of a finished run."""
    config = objective.config
    rate = results["steady_residues_per_second"] or results["train_residues_per_second"]
    # Results of earlier versions, which scored all, have no extent.
    scored = f"scored  {results[SCORED]}\n" if SCORED in results else ""
    return (
        f"{config.name}: {objective.summary(results)}, {rate:.0f} {objective.split.tokens}/s\n"
        f"{scored}"
        f"model   {config.run_dir / 'model'}\n"
        f"report  {config.run_dir / REPORT_FILE}\n"
        f"{files_line(config.run_dir)}"
    )
