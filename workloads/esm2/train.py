"""Pre-training of ESM-2: ``torchrun -m workloads.esm2.train --config RUN.yaml [section.field=value ...]``.

The same command started again goes on from the newest checkpoint. SIGTERM and Ctrl-C save first.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist
import transformers
from torch import nn
from torch.optim import Optimizer

from .checkpoint import Checkpointer
from .command_line import RunError, run_command, tell
from .config import RunConfig
from .evaluation import Score, score, unigram_perplexity
from .hardware import compiles, compute_dtype, environment, num_flops, peak_flops, peak_memory_bytes
from .heartbeat import beat
from .loader import ReadAhead, StepPacks, step_packs
from .masking import mask_pack
from .mlflow_mirror import RunStatus
from .optimizer import build_optimizers, learning_rate, set_learning_rate
from .packing import PackShape, PackStream, Position
from .parallel import accumulating, bare, clip_gradients, parallelize
from .pretrained import full_weights, on_meta, save_model, starting_config, starting_weights
from .processes import Processes, processes
from .progress import Progress, Window
from .proteins import ProteinSplit
from .run_lock import exclusive
from .stop import STOPPED_BY_SIGNAL, StopSignal, stop_signal
from .tracking import RESULTS_FILE, RunLog, write_results


class NonFiniteLossError(RunError):
    """Loss or gradient is NaN or infinite; the weights were not touched."""


@dataclass(frozen=True)
class StepResult:
    loss: float
    """Mean cross-entropy in nats over all residues predicted in the step."""
    grad_norm: float
    learning_rate: float


class Trainer:
    """One run: model, optimizers, data and the steps over them."""

    def __init__(self, config: RunConfig, here: Processes) -> None:
        self.config, self.here = config, here
        train = config.train
        self.split = ProteinSplit(config.data.path, "train")
        self.shape = PackShape.of(self.split, train.tokens_per_pack, config.model.max_residues)
        self.dtype = compute_dtype(train, here.device)
        self.esm_config = starting_config(config.model)
        # With FSDP the first process alone holds a whole model, on the host, and sends out the shares.
        has_weights = config.parallel.mode == "ddp" or here.is_first
        weights = starting_weights(config.model, train.seed) if has_weights else {}
        model = on_meta(self.esm_config)
        model.activation_checkpointing = train.activation_checkpointing
        self.model: nn.Module = parallelize(model, weights, config.parallel, here, self.dtype)
        if compiles(train, here.device):
            # Layers are graphs of their own; inside DDP, Dynamo would cut each into buckets once more.
            torch._dynamo.config.optimize_ddp = False
            for layer in bare(self.model).esm.encoder.layer:
                layer.compile(dynamic=False)
        self.optimizers: list[Optimizer] = build_optimizers(self.model, config.optim)
        self.progress = Progress()
        self.has_stepped = False

    def step(self, step: StepPacks) -> StepResult:
        """One optimizer step over this process's share of the step's packs.

        Raises:
            NonFiniteLossError: before the optimizer has touched a weight.
        """
        here, train = self.here, self.config.train
        lr = learning_rate(self.progress.step + 1, train.max_steps, self.config.optim)
        set_learning_rate(self.optimizers, lr)
        packs = [
            mask_pack(host, self.shape.max_length, self.config.model.mask_fraction, here.device)
            for host in step.packs
        ]
        # The loss is a mean over all residues predicted in the step, on any process and in any
        # micro-batch. DDP and FSDP average gradients over processes, hence the factor world_size.
        num_predicted = torch.stack([(pack.targets != -100).sum() for pack in packs]).sum()
        dist.all_reduce(num_predicted)
        num_predicted.clamp_(min=1)  # a step of a few short proteins may have none
        loss = torch.zeros((), device=here.device)
        for index, pack in enumerate(packs):
            with accumulating(self.model, is_last=index == len(packs) - 1):
                with torch.autocast(
                    here.device.type, dtype=torch.bfloat16, enabled=self.dtype == torch.bfloat16
                ):
                    loss_sum = self.model(pack).loss_sum
                (loss_sum * (here.world_size / num_predicted)).backward()
            loss += loss_sum.detach() / num_predicted
            self.beat()
        dist.all_reduce(loss)
        grad_norm = clip_gradients(self.model, self.config.optim.clip_norm)
        mean_loss, norm = here.to_host(torch.stack([loss, grad_norm]))
        result = StepResult(mean_loss, norm, lr)
        if not (math.isfinite(result.loss) and math.isfinite(result.grad_norm)):
            raise NonFiniteLossError(
                f"step {self.progress.step + 1}: loss {result.loss}, gradient norm {result.grad_norm} at "
                f"learning rate {lr:.3g}; the weights were not touched. Lower optim.lr or "
                "lengthen optim.warmup_steps, then start the same command again"
            )
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.progress.add(step, result.loss)
        self.has_stepped = True
        return result

    def beat(self) -> None:
        """The first step of this process compiles and connects."""
        beat("training", slow=not self.has_stepped)

    def num_flops(self, residues: int, attended_pairs: int) -> float:
        return num_flops(bare(self.model), residues, attended_pairs)

    def steps(self) -> Iterator[StepPacks]:
        """Packs of every step from where the run stands."""
        stream = PackStream(self.split, self.shape, self.config.train.seed)
        position = Position(self.progress.epoch, self.progress.pack)
        here = self.here
        return step_packs(stream, position, self.config.packs_per_step, here.rank, here.world_size)

    def score(self, split: ProteinSplit, num_packs: int = 0) -> Score:
        return score(
            self.model,
            split,
            shape=self.shape,
            mask_fraction=self.config.model.mask_fraction,
            dtype=self.dtype,
            here=self.here,
            num_packs=num_packs,
        )

    def identity(self) -> dict[str, Any]:
        """What a checkpoint must agree on to be resumed; everything else may change between starts."""
        config = self.config
        shards = self.split.manifest.splits["train"].shards
        return {
            **{f"model.{name}": value for name, value in asdict(config.model).items()},
            "train.seed": config.train.seed,
            "train.tokens_per_pack": config.train.tokens_per_pack,
            "train.tokens_per_step": config.train.tokens_per_step,
            "optim.name": config.optim.name,
            "optim.betas": list(config.optim.betas),
            "optim.eps": config.optim.eps,
            "optim.weight_decay": config.optim.weight_decay,
            "data (sha256 of the training shards)": hashlib.sha256(
                "".join(shard.sha256 for shard in shards).encode()
            ).hexdigest(),
        }


def train(config: RunConfig, here: Processes) -> dict[str, Any]:
    """Train to ``train.max_steps``, evaluate, write model, results and report; returns the results.

    Raises:
        SystemExit: with status 143 after a signal, once the state is saved.
        ValueError: for data, weights or checkpoints that do not fit the configuration.
        RunError: if the loss is not finite or a checkpoint cannot be written.
    """
    run_dir = config.run_dir
    validation = ProteinSplit(config.data.path, "validation")
    trainer = Trainer(config, here)
    progress = trainer.progress
    folder, keep = run_dir / "checkpoints", config.train.keep_checkpoints
    with Checkpointer(folder, here, trainer.identity(), keep) as checkpointer, stop_signal() as stop:
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
            uri=config.tracking.mlflow_uri,
            experiment=config.tracking.experiment,
            max_steps=config.train.max_steps,
            enabled=here.is_first,
        )
        lost = log.truncate_after(progress.step)
        if saved is not None or lost:
            log.event(progress.step, "resumed", lost_steps=lost)
        status: RunStatus = "FAILED"
        try:
            with closing(ReadAhead(trainer.steps())) as steps:
                _loop(trainer, iter(steps), validation, checkpointer, log, stop)
            results = _finish(trainer, validation, log)
            status = "FINISHED"
        except SystemExit:
            status = "KILLED"
            raise
        finally:
            beat("ending", slow=True)
            log.close(status)
    if here.is_first:
        write_results(run_dir, results)
        # Imported here: matplotlib takes a second, which no start and no other process should wait for.
        from .report import write_report

        write_report(run_dir)
    return results


def _loop(
    trainer: Trainer,
    steps: Iterator[StepPacks],
    validation: ProteinSplit,
    checkpointer: Checkpointer,
    log: RunLog,
    stop: StopSignal,
) -> None:
    config, here, progress = trainer.config.train, trainer.here, trainer.progress
    earlier, started = progress.seconds, time.monotonic()
    window = Window(progress, trainer.num_flops, here.device, here.world_size)
    versions = environment(here.device)

    def save() -> None:
        progress.seconds = earlier + time.monotonic() - started
        checkpointer.save(
            progress.step,
            trainer.model,
            trainer.optimizers,
            {
                "progress": asdict(progress),
                "config": trainer.config.to_dict(),
                "model_config": trainer.esm_config.to_dict(),
                "environment": versions,
            },
        )

    while progress.step < config.max_steps:
        trainer.beat()  # what was slow, a checkpoint or an evaluation, is over
        result = trainer.step(next(steps))
        step = progress.step
        is_last = step == config.max_steps
        if step % config.log_every_steps == 0 or is_last or step == 1:
            progress.seconds = earlier + time.monotonic() - started
            log.train(step, **asdict(result), **window.measure())
        stopping, written = here.sum_on_host(stop.received, checkpointer.is_written)
        if written == here.world_size:
            log.event(checkpointer.finish() or step, "checkpoint")
        if stopping or is_last or step % config.save_every_steps == 0:
            save()
        if stopping:
            checkpointer.finish()
            log.event(step, f"stopped by {stop.name}")
            if here.is_first:
                tell(
                    f"stopped by {stop.name}: step {step} is saved in {trainer.config.run_dir}; "
                    "the same command goes on from there"
                )
            raise SystemExit(STOPPED_BY_SIGNAL)
        if step % config.eval_every_steps == 0 and not is_last:
            log.evaluation(step, "validation", **_values(trainer.score(validation, config.eval_packs)))
            window.begin()
    if (saved := checkpointer.finish()) is not None:
        log.event(saved, "checkpoint")
    progress.seconds = earlier + time.monotonic() - started


def _finish(trainer: Trainer, validation: ProteinSplit, log: RunLog) -> dict[str, Any]:
    """Final scores and the model in transformers' format."""
    config, here, progress = trainer.config, trainer.here, trainer.progress
    beat("writing the model", slow=True)
    weights = full_weights(trainer.model)
    if here.is_first:
        save_model(config.run_dir / "model", trainer.esm_config, weights)
    here.sum_on_host(0.0)  # the others wait here, where waiting may take long
    valid = trainer.score(validation)
    log.evaluation(progress.step, "validation", **_values(valid))
    test: Score | None = None
    if trainer.split.manifest.splits["test"].records:
        test = trainer.score(ProteinSplit(config.data.path, "test"))
        log.evaluation(progress.step, "test", **_values(test))
    flops = trainer.num_flops(progress.residues, progress.attended_pairs)
    peak, seconds = peak_flops(here.device), max(progress.seconds, 1e-9)
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
        "peak_memory_bytes": peak_memory_bytes(here.device),
        "eval_loss": valid.loss,
        "eval_accuracy": valid.accuracy,
        "perplexity": valid.perplexity,
        "eval_samples": valid.num_proteins,
        "eval_runtime": valid.seconds,
        "eval_samples_per_second": valid.num_proteins / valid.seconds,
        "unigram_perplexity": unigram_perplexity(validation),
        "test_loss": test and test.loss,
        "test_accuracy": test and test.accuracy,
        "test_perplexity": test and test.perplexity,
        "parameters": sum(p.numel() for p in trainer.model.parameters() if p.requires_grad),
        "world_size": here.world_size,
        "environment": environment(here.device),
    }


def _values(result: Score) -> dict[str, float]:
    return {
        "eval_loss": result.loss,
        "eval_accuracy": result.accuracy,
        "perplexity": result.perplexity,
    }


def main(config: RunConfig) -> None:
    beat("starting", slow=True)
    transformers.utils.logging.disable_progress_bar()  # of no use once a process
    with processes() as here, exclusive(config.run_dir, here):
        if here.is_first and config.packs_per_step % here.world_size:
            print(
                f"warning: a step has {config.packs_per_step} packs for {here.world_size} processes, so some "
                "idle in its last round; choose train.tokens_per_pack or train.tokens_per_step so that it "
                "divides evenly",
                file=sys.stderr,
            )
        results = train(config, here)
        if here.is_first:
            print(
                f"{config.name}: validation perplexity {results['perplexity']:.2f} "
                f"(unigram {results['unigram_perplexity']:.2f}), accuracy {results['eval_accuracy']:.3f}, "
                f"{results['train_residues_per_second']:.0f} residues/s\n"
                f"model   {config.run_dir / 'model'}\nreport  {config.run_dir / 'report.html'}"
            )


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    run_command(main)
