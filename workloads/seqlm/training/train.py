"""The loop of a training: steps, evaluations, checkpoints, and the results at its end."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict
from typing import Any

import transformers

from seqlm.training.tracking.metrics_port import PORT
from seqlm.training.tracking.mirror import RunStatus
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
from .hardware import environment, executed_flops, matmul_ceiling, peak_flops, peak_memory_bytes
from .heartbeat import STARTED, beat
from .loader import StepPacks, read_ahead
from .objective import Evaluation, Guard, Objective, Place
from .parallel import bare
from .processes import Processes, exclusive, processes
from .records import RecordSplit
from .saved_model import full_weights
from .tracking.progress import Progress, Window
from .trainer import Trainer


def train(objective: Objective, here: Processes) -> dict[str, Any]:
    """Train to ``train.max_steps``, evaluate, write model and results; returns the results.

    Raises:
        Stopped: after a signal, once the state is saved.
        ValueError: for data, weights or checkpoints that do not fit the configuration.
        RunError: if the loss is not finite or a checkpoint cannot be written.
    """
    config, began = objective.config, time.time()
    run_dir = config.run_dir
    validation, guard = objective.open("validation"), objective.guard()
    trainer = Trainer(objective, here)
    progress = trainer.progress
    folder, keep = run_dir / "checkpoints", config.train.keep_checkpoints
    checkpoints = Checkpointer(folder, here, objective.identity(here), keep, trains_all=objective.trains_all)
    with checkpoints as checkpointer, signals_to(here.stop):
        saved = checkpointer.restore(trainer.model, trainer.optimizers)
        if saved is not None:
            trainer.progress = progress = Progress(**saved["progress"])
        if progress.step > config.train.max_steps:
            raise ValueError(
                f"train.max_steps: got {config.train.max_steps}, but {run_dir} has come to step "
                f"{progress.step}; give at least that, or another name"
            )
        if progress.step == config.train.max_steps and (run_dir / RESULTS_FILE).exists():
            return dict(json.loads((run_dir / RESULTS_FILE).read_text()))
        log = RunLog(
            run_dir,
            config=config.to_dict(),
            tracking=config.tracking,
            max_steps=config.train.max_steps,
            enabled=here.is_first,
            tokens=objective.split.tokens,
        )
        lost = log.truncate_after(progress.step)
        if saved is not None or lost:
            log.event(progress.step, "resumed", lost_steps=lost)
        peak = peak_flops(here.device)
        metrics = TrainingMetrics(config.name, trainer.num_flops)
        metrics.set(max_steps=config.train.max_steps, processes=here.world_size, step=progress.step)
        metrics.set(peak_flops_per_second=peak and peak * here.world_size)
        metrics.add(lost_steps=lost)
        status: RunStatus = "FAILED"
        try:
            start_seconds = time.time() - float(os.environ.get(STARTED, began))
            with metrics.served(os.environ.get(PORT) if here.is_first else None):
                with closing(read_ahead(trainer.steps())) as steps:
                    _loop(trainer, steps, validation, guard, checkpointer, log, metrics)
                ended = time.monotonic()
                results = {"start_seconds": start_seconds, **_finish(trainer, validation, log, metrics)}
                results["end_seconds"] = time.monotonic() - ended
            status = "FINISHED"
        except Stopped:
            status = "KILLED"
            log.event(progress.step, f"stopped by {here.stop.name}")
            if here.is_first:
                tell(
                    f"stopped by {here.stop.name}: step {progress.step} is saved in {run_dir}; "
                    "the same command continues from there"
                )
            raise
        finally:
            beat("ending", slow=True)
            log.close(status)
    if here.is_first:
        write_results(run_dir, results)
    return results


def _loop(
    trainer: Trainer,
    steps: Iterator[StepPacks],
    validation: RecordSplit,
    guard: Guard | None,
    checkpointer: Checkpointer,
    log: RunLog,
    metrics: TrainingMetrics,
) -> None:
    """Train to the last step.

    Raises:
        Stopped: after a signal, once the state is saved.
        RunError: if the guard ends the run, once the state is saved.
    """
    config, here, progress = trainer.config.train, trainer.here, trainer.progress
    earlier, started = progress.seconds, time.monotonic()
    save_began, last_saved = started, -1
    window = Window(progress, trainer.num_flops, here.device, here.world_size)
    versions = environment(here.device) | trainer.precision.record()

    def save() -> None:
        nonlocal save_began, last_saved
        trainer.settle()
        progress.seconds = earlier + time.monotonic() - started
        with metrics.timing("checkpoint_stall"):
            checkpointer.save(
                progress.step,
                trainer.model,
                trainer.optimizers,
                {
                    "progress": asdict(progress),
                    "config": trainer.config.to_dict(),
                    "model_config": trainer.objective.model_config.to_dict(),
                    "environment": versions,
                },
            )
        save_began, last_saved = time.monotonic(), progress.step
        window.begin()

    def finish() -> int | None:
        with metrics.timing("checkpoint_stall"):
            saved = checkpointer.finish()
        window.begin()
        if saved is not None:
            metrics.set(checkpoint_step=saved, checkpoint_write_seconds=time.monotonic() - save_began)
        return saved

    def watch() -> str | None:
        """Score the guard's split; return the problem if its loss has risen and the guard ends the run."""
        assert guard is not None
        with metrics.timing("evaluation"):
            loss = trainer.evaluate(guard.split, config.eval_packs).values["eval_loss"]
        window.begin()
        if progress.guard_loss is None:
            progress.guard_loss = loss
        increase = loss / progress.guard_loss - 1
        log.evaluation(progress.step, "general", eval_loss=loss, loss_increase=increase)
        if increase <= guard.max_increase:
            return None
        problem = (
            f"the loss on general proteins rose by {increase:.1%} since the start "
            f"(guard.max_increase is {guard.max_increase:.1%})"
        )
        log.event(progress.step, f"warning: {problem}")
        return problem if guard.stop else None

    try:
        if guard and progress.guard_loss is None:
            watch()
        while progress.step < config.max_steps:
            window.next_step()
            trainer.beat()  # what was slow, a checkpoint or an evaluation, is over
            with metrics.timing("data_wait"):
                packs = next(steps)
            with metrics.timing("step"):
                trainer.step(packs)
                step = progress.step
                is_last = step == config.max_steps
                logs = step % config.log_every_steps == 0 or is_last or step == 1
                if logs or 0 in (step % config.save_every_steps, step % config.eval_every_steps):
                    result = trainer.settle()
            metrics.made_step(step, packs)
            if logs:
                assert result is not None
                progress.seconds = earlier + time.monotonic() - started
                values = {**asdict(result), **window.measure()}
                log.train(step, **values)
                metrics.logged(values)
            stopping, written = here.sum_on_host(here.stop.received, checkpointer.is_written)
            if written == here.world_size:
                log.event(finish() or step, "checkpoint")
            if stopping:
                raise Stopped
            if is_last or step % config.save_every_steps == 0:
                save()
            if step % config.eval_every_steps == 0 and not is_last:
                with metrics.timing("evaluation"):
                    found = trainer.evaluate(validation, config.eval_packs)
                log.evaluation(step, "validation", **found.values)
                metrics.set(validation_loss=found.values["eval_loss"])
                window.begin()
            if guard and (is_last or step % config.eval_every_steps == 0):
                problem = watch()
                if problem and not is_last:
                    if last_saved != step:
                        save()
                    finish()
                    raise RunError(
                        f"{problem}; step {step} is saved in {trainer.config.run_dir}. Start again with a "
                        f"lower {trainer.objective.lr_field} or more general proteins, or continue this one "
                        "with guard.stop=false"
                    )
    except Stopped:
        if last_saved != progress.step:
            save()
        finish()
        raise
    if (saved := finish()) is not None:
        log.event(saved, "checkpoint")
    progress.seconds = earlier + time.monotonic() - started


def _finish(
    trainer: Trainer, validation: RecordSplit, log: RunLog, metrics: TrainingMetrics
) -> dict[str, Any]:
    """Final scores, and the model for others to load."""
    config, here, progress, objective = trainer.config, trainer.here, trainer.progress, trainer.objective
    beat("writing the model", slow=True)
    weights = full_weights(trainer.model, trained_only=not objective.trains_all)
    if here.is_first:
        objective.write_model(config.run_dir, weights, here.device)
    here.sum_on_host(0.0)  # the others wait here, where waiting may take long
    with metrics.timing("evaluation"):
        valid = trainer.evaluate(validation)
    log.evaluation(progress.step, "validation", **valid.values)
    metrics.set(validation_loss=valid.values["eval_loss"])
    test: Evaluation | None = None
    if objective.split.manifest.splits["test"].records:
        test = trainer.evaluate(objective.open("test"))
        log.evaluation(progress.step, "test", **test.values)
    if here.is_first:
        objective.record(config.run_dir, valid, test)
    flops = trainer.num_flops(progress.residues, progress.attended_pairs)
    slots, pairs = progress.steady_slots, progress.steady_attended_pairs
    steady_flops = trainer.num_flops(progress.steady_residues, pairs)
    empty = objective.stream(objective.split, trainer.shape, 0).load(None)
    pack = objective.pack(empty, trainer.shape, here.runtime.packs_on)
    rows = len(pack.rows) * (slots // trainer.shape.num_tokens)
    recomputed = config.train.activation_checkpointing
    on_cpu = here.device.type == "cpu"
    executed = executed_flops(bare(trainer.model), slots, rows, pairs, recomputed=recomputed, on_cpu=on_cpu)
    parameters = sum(p.numel() for p in trainer.model.parameters() if p.requires_grad)
    trainer.release()
    with metrics.timing("evaluation"):
        written = objective.score_written(config.run_dir, Place(here, trainer.shape, trainer.dtype))
    if written:
        log.evaluation(progress.step, "validation" if test is None else "test", **written)
    peak, seconds = peak_flops(here.device), max(progress.seconds, 1e-9)
    memory = peak_memory_bytes(here.device)
    ceiling = None if here.runtime.compiles_shapes else matmul_ceiling(here.device, trainer.dtype)
    steady = progress.steady_seconds

    def share(flops: float, of: float | None) -> float | None:
        """Share of a device's rate that the steady steps reached."""
        return flops / steady / here.world_size / of if steady and of else None

    return {
        "epoch": progress.epoch,
        "train_loss": progress.loss_sum / max(1, progress.step),
        "train_runtime": seconds,
        "train_samples": progress.proteins,
        "train_samples_per_second": progress.proteins / seconds,
        "train_steps_per_second": progress.step / seconds,
        "train_residues": progress.residues,
        "train_residues_per_second": progress.residues / seconds,
        "total_flos": flops,
        "fill": progress.residues / max(1, progress.slots),
        "mfu": flops / seconds / here.world_size / peak if peak else None,
        "steady_seconds": steady,
        "steady_residues_per_second": progress.steady_residues / steady if steady else None,
        "model_mfu": share(steady_flops, peak),
        "executed_mfu": share(executed, peak),
        "ceiling_flops_per_second": ceiling,
        "share_of_ceiling": share(executed, ceiling),
        "length_weighted_mean_length": progress.length_weighted_mean(trainer.shape.special_tokens),
        "peak_memory_bytes": memory,
        **valid.values,
        "eval_samples": valid.num_proteins,
        "eval_runtime": valid.seconds,
        "eval_samples_per_second": valid.num_proteins / valid.seconds,
        **objective.results(valid, test),
        **written,
        "init_from_sha256": trainer.start_sha256,
        "parameters": parameters,
        "world_size": here.world_size,
        "environment": environment(here.device) | trainer.precision.record(),
    }


def train_run(
    config: RunConfig, make_objective: Callable[[], Objective], write_report: Callable[[], object]
) -> None:
    """Train in this process, one of the run's, and say where the results are.

    Args:
        config: of the run.
        make_objective: what the run trains for; called when the run is locked.
        write_report: called by the first process at the end.
    """
    beat("starting", slow=True)
    transformers.utils.logging.disable_progress_bar()  # of no use once a process
    run_dir = config.run_dir
    when_held = (
        f"{run_dir} is being trained by another process; wait for it, stop it (its workers too), or choose "
        "another 'name'"
    )
    with (
        processes(compile_cache=run_dir / COMPILE_CACHE) as here,
        exclusive(run_dir / METRICS_FILE, here, when_held),
    ):
        if here.is_first and config.packs_per_step % here.world_size:
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
            rate = results["steady_residues_per_second"] or results["train_residues_per_second"]
            print(
                f"{config.name}: {objective.summary(results)}, "
                f"{rate:.0f} {objective.split.tokens}/s\n"
                f"model   {run_dir / 'model'}\nreport  {run_dir / REPORT_FILE}\n{files_line(run_dir)}"
            )
