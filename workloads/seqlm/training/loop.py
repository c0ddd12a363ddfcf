"""Steps of a training with the evaluations and checkpoints between them."""

import time
from collections.abc import Iterator
from dataclasses import asdict

from seqlm.training.tracking.run_log import RunLog
from seqlm.training.tracking.training_metrics import TrainingMetrics

from .checkpoint import Checkpointer
from .command_line import RunError, Stopped
from .hardware import environment
from .loader import StepPacks
from .objective import Guard
from .records import RecordSplit
from .tracking.progress import Window
from .trainer import StepResult, Trainer


class TrainingLoop:
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
    """

    def __init__(
        self,
        trainer: Trainer,
        validation: RecordSplit,
        guard: Guard | None,
        checkpointer: Checkpointer,
        log: RunLog,
        metrics: TrainingMetrics,
    ) -> None:
        self._trainer = trainer
        self._validation = validation
        self._guard = guard
        self._checkpointer = checkpointer
        self._log = log
        self._metrics = metrics
        self._config = trainer.config.train
        self._here = trainer.here
        self._progress = trainer.progress
        self._earlier_seconds = trainer.progress.seconds
        """Training time of former starts."""
        self._started = time.monotonic()
        self._save_began = self._started
        self._last_saved: int | None = None
        """Step of this start's last save."""
        self._window = Window(trainer.progress, trainer.num_flops, self._here.device, self._here.world_size)
        self._environment = environment(self._here.device) | trainer.precision.record()

    def run(self, steps: Iterator[StepPacks]) -> None:
        """Train to the last step.

        Args:
            steps: packs of each step, from the run's position on.

        Raises:
            Stopped: after a signal, once the state is saved.
            RunError: if the guard ends the run, once the state is saved.
        """
        try:
            if self._guard is not None and self._progress.guard_loss is None:
                self._guard_problem(self._guard)
            while self._progress.step < self._config.max_steps:
                self._advance(steps)
        except Stopped:
            self._ensure_saved()
            raise
        saved = self._finish_save()
        if saved is not None:
            self._log.event(saved, "checkpoint")
        self._update_seconds()

    def _advance(self, steps: Iterator[StepPacks]) -> None:
        """Make one step, and whatever is due after it."""
        self._make_step(steps)
        self._exchange_flags()
        if self._is_last or self._is_due(self._config.save_every_steps):
            self._save()
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
        with self._metrics.timing("step"):
            self._trainer.step(packs)
            logs = self._progress.step == 1 or self._is_last or self._is_due(self._config.log_every_steps)
            saves = self._is_due(self._config.save_every_steps)
            evaluates = self._is_due(self._config.eval_every_steps)
            if logs or saves or evaluates:
                result = self._trainer.settle()
        self._metrics.made_step(self._progress.step, packs)
        if logs:
            assert result is not None  # a step has been made
            self._log_step(result)

    @property
    def _is_last(self) -> bool:
        return self._progress.step == self._config.max_steps

    def _is_due(self, every_steps: int) -> bool:
        return self._progress.step % every_steps == 0

    def _log_step(self, result: StepResult) -> None:
        self._update_seconds()
        values = {**asdict(result), **self._window.measure()}
        self._log.train(self._progress.step, **values)
        self._metrics.logged(values)

    def _update_seconds(self) -> None:
        self._progress.seconds = self._earlier_seconds + time.monotonic() - self._started

    def _exchange_flags(self) -> None:
        """Complete a save that every process has written, and stop if one of them got a signal.

        Raises:
            Stopped: on every process, if one of them got a signal.
        """
        num_stopping, num_written = self._here.sum_on_host(
            self._here.stop.received, self._checkpointer.is_written
        )
        if num_written == self._here.world_size:
            self._log.event(self._finish_save() or self._progress.step, "checkpoint")
        if num_stopping:
            raise Stopped

    def _save(self) -> None:
        """Start writing a checkpoint of this step."""
        self._trainer.settle()
        self._update_seconds()
        with self._metrics.timing("checkpoint_stall"):
            self._checkpointer.save(
                self._progress.step,
                self._trainer.model,
                self._trainer.optimizers,
                {
                    "progress": asdict(self._progress),
                    "config": self._trainer.config.to_dict(),
                    "model_config": self._trainer.objective.model_config.to_dict(),
                    "environment": self._environment,
                },
            )
        self._save_began = time.monotonic()
        self._last_saved = self._progress.step
        self._window.begin()

    def _finish_save(self) -> int | None:
        """Wait until the checkpoint under way is complete; return its step, None if there was none."""
        with self._metrics.timing("checkpoint_stall"):
            saved = self._checkpointer.finish()
        self._window.begin()
        if saved is not None:
            self._metrics.saved(saved, time.monotonic() - self._save_began)
        return saved

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
        self._log.event(self._progress.step, f"warning: {problem}")
        return problem if guard.stop else None
