"""Optimizer step of a run: forward and backward pass of its packs, and one update of the weights."""

import time
from dataclasses import dataclass
from statistics import median_low
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .checkpoint import Checkpointer
from .config import RunConfig
from .device_runtime import to_device
from .hardware import compiles, cpu_name, environment, num_flops
from .hashing import hash64
from .health.faults import NonFiniteLossError, SickHardwareError, StepFigures, fault_of
from .health.pass_times import Part, PassTimes, SharedTimes
from .health.repetition import (
    MAX_PROBLEM_CHARS,
    FirstGradient,
    OwnFigures,
    alone,
    are_finite,
    deterministic,
)
from .heartbeat import beat
from .kernels import (
    GRAPH,
    KERNELS,
    KERNELS_FIELD,
    agreed,
    keeps_gradients,
    listed,
    selected,
)
from .objective import Evaluation, Objective, Place
from .optimizer import learning_rate
from .parallel import (
    accumulating,
    bare,
    clip_gradients,
    in_ddp,
    send_parameters,
)
from .precision import select_precision
from .processes import Processes
from .records import RecordSplit
from .step.flags import NO_FLAGS, FlagCounts, Flags
from .step.graph import RecordedPass
from .step.loader import StepPacks, Steps
from .step.pack_queue import PackQueue
from .step.pack_shares import device_seconds, even_shares, shares_by_speed, shares_text
from .step.shared_plans import node_plans
from .step.staging import Stager
from .step.start import build_start
from .tracking.progress import Progress
from .tracking.resumption import SHARES_FIELD

UNMEASURED_PASSES = 2
"""Passes before those whose time is measured. The first one compiles."""
MEASURED_PASSES = 5
DROPOUT_SALT = 0x64726F70
"""Salt that distinguishes the hashes of dropout from those of masks and crops."""


@dataclass(frozen=True)
class _Repeatable:
    """Input of a step, from which this process can repeat it alone, and its own figures."""

    step: StepPacks
    num_targets: Tensor
    """() number of targets of the step on all processes, at least 1, on the device."""
    own: Tensor
    """Own loss and, if it is known, the sum of the first layer's own gradient, on the device."""


@dataclass(frozen=True)
class StepResult:
    """Figures of one optimizer step."""

    loss: float
    """Mean over all targets of the step, in nats if it is a cross-entropy."""
    grad_norm: float
    """Global norm of the gradient before clipping."""
    learning_rate: float
    """Learning rate of the step."""


class _Launched:
    """Step that the device may still be computing.

    Args:
        number: number of the step, from 1 on.
        learning_rate: learning rate of the step.
        figures: loss, gradient norm, sums of the flags, times of all processes if they are shared and, if the
            run has a failure flag, the flag.
        num_times: number of elements of the times.
        repeatable: input for a repetition of the step; None if it cannot be repeated.
    """

    def __init__(
        self,
        number: int,
        learning_rate: float,
        figures: Tensor,
        num_times: int,
        repeatable: _Repeatable | None,
    ) -> None:
        self.number = number
        self.learning_rate = learning_rate
        self.num_times = num_times
        self.repeatable = repeatable
        self._figures = figures
        self._copied: torch.cuda.Event | None = None
        if figures.is_cuda:
            self._figures = figures.to("cpu", non_blocking=True)  # into pinned memory
            self._copied = torch.cuda.Event()
            self._copied.record()

    def figures(self, here: Processes) -> list[float]:
        """Wait for the figures, but not for operations that were launched after them."""
        if self._copied is not None:
            self._copied.synchronize()
        return here.to_host(self._figures)


class Trainer:
    """Model, optimizers and data of a run, and the steps over them.

    With a failure flag, the host launches a step before it waits for the previous one.

    Args:
        objective: model, data and loss of the run.
        here: this process.
        kernels: names of the kernels to use, in place of those that ``train.kernels`` selects.
        checkpointer: states of the run, the newest of which is restored; None restores none.
    """

    def __init__(
        self,
        objective: Objective,
        here: Processes,
        kernels: frozenset[str] | None = None,
        checkpointer: Checkpointer | None = None,
    ) -> None:
        self.objective = objective
        self.here = here
        self.config: RunConfig = objective.config
        config = self.config
        train = config.train
        self.runtime = here.runtime
        self.runtime.check(config, objective.xla_problems)
        self.shape = objective.pack_shape(objective.split)
        self.precision = select_precision(train, here.device, here, config.run_dir)
        self.dtype = self.precision.dtype
        started = build_start(objective, here, self.dtype, checkpointer)
        self.model: nn.Module = started.model
        self.optimizers = started.optimizers
        self.start_sha256 = started.sha256
        self.saved = started.saved
        """``checkpoint.json`` of the state that was restored; None if none was."""
        # Kernels are compared on the device, and they decide whether DDP is used.
        compiles_layers = compiles(train, here.device)
        objective.compiles_packs = compiles_layers and here.device.type == "cuda"
        self.kernels = self._usable_kernels(kernels)
        bare(self.model).select_kernels(self.kernels - {GRAPH}, self.dtype)
        are_kept = self.runtime.keeps_gradients or keeps_gradients(self.kernels)
        if keeps_gradients(self.kernels):
            send_parameters(self.model, here)
        elif not are_kept and config.parallel.mode == "ddp":
            self.model = in_ddp(self.model, here)
        if compiles_layers:
            # Each layer is a graph. Inside DDP, Dynamo would split it again, by buckets of gradients.
            torch._dynamo.config.optimize_ddp = False
            for layer in bare(self.model).layers:
                layer.compile(dynamic=False)
        self._pass_times = PassTimes(self.model, here, self._measured_part(are_kept))
        self.pass_times: SharedTimes | None = None
        """Times of all processes that were read last."""
        self._fault: NonFiniteLossError | SickHardwareError | None = None
        """Error of the first step that was not finite."""
        self.progress = Progress()
        self._launched: _Launched | None = None
        self._result: StepResult | None = None
        self._gradients = self.runtime.gradients(
            self.optimizers,
            here.world_size,
            are_kept=are_kept,
            adjacent=bare(self.model).adjacent_parameters(),
        )
        self._no_flags = torch.zeros(len(NO_FLAGS), device=here.device)
        """Flags of most steps."""
        self.flag_counts: FlagCounts | None = None
        """Sums of the flags of the step that was read last."""
        self.runtime.prepare(self.optimizers)
        # The flag is 1 from the first step that is not finite, on all processes.
        self._failed = self.runtime.failure_flag(self.optimizers)
        has_evidence = here.world_size > 1 and self._failed is not None
        self._first_gradient = FirstGradient(self.model) if has_evidence else None
        self.has_stepped = False
        self._packs = PackQueue(
            lambda host: objective.pack(host, self.shape, self.runtime.packs_on),
            objective.num_targets,
        )
        self._recorded: RecordedPass | None = None
        if GRAPH in self.kernels:
            self._record_passes()
        kinds = here.gather({here.rank: self.runtime.name() or cpu_name()})
        self.device_kinds = [str(kinds[rank]) for rank in range(here.world_size)]
        """Name of the device of each process."""
        self._seconds_per_pack = self._device_seconds()
        """Time of a pack on each process; None if all processes have as many packs."""

    def _usable_kernels(self, wanted: frozenset[str] | None) -> frozenset[str]:
        """Return the kernels of the run, the same on all processes, without those that fail the comparison.

        Args:
            wanted: names in place of those that ``train.kernels`` selects; None for the latter.
        """
        model = bare(self.model)
        if wanted is None:
            offered = set(model.kernels)
            if self.objective.has_constant_passes:
                offered.add(GRAPH)
            wanted = selected(self.config.train.kernels, offered, self.here.device, self.dtype)
        if self.config.parallel.mode == "fsdp":
            # FSDP2 replaces the gradients of a layer in each pass.
            wanted = frozenset(name for name in wanted if not KERNELS[name].keeps_gradients)
        of_model = wanted - {GRAPH}
        if not of_model:
            return wanted
        problems = agreed(model.kernel_problems(of_model, self._first_pack()), self.here)
        return wanted - problems.keys()

    def _measured_part(self, are_kept: bool) -> Part:
        """Return the part of a pass that needs no other process."""
        if self.config.parallel.mode == "fsdp":
            return "layers"
        return "pass" if are_kept else "forward"

    def _first_pack(self) -> Any:
        """Return the first pack of the run's data, as an example of its packs."""
        stream = self.objective.stream(self.objective.split, self.shape, self.config.train.seed)
        planned, _ = next(stream.packs())
        return self.objective.pack(stream.load(planned), self.shape, self.runtime.packs_on)

    def _record_passes(self) -> None:
        """Record the passes of a pack. If that fails on any process, all of them launch their operations.

        The passes before the recording add to the gradients, which are 0 again when a step begins.
        """
        problems: dict[str, str] = {}
        self._gradients.begin()
        bare(self.model).weights_changed()
        factor = torch.ones((), device=self.here.device)
        try:
            self._recorded = RecordedPass(
                self._launch_pass, self.runtime.recorded, self._first_pack(), factor
            )
        except Exception as error:  # of any of the operations; the run needs none of it
            problems[GRAPH] = f"{type(error).__name__}: {error}"
        self._gradients.detach()  # until a checkpoint is restored
        if agreed(problems, self.here):
            self._recorded = None
            self.kernels -= {GRAPH}

    def _device_seconds(self) -> list[float] | None:
        """Return the time of a pack on each process; None if the processes have equal shares."""
        train = self.config.train
        if train.pack_shares == "even" or len(set(self.device_kinds)) == 1:
            return None
        return device_seconds(
            self.config.run_dir,
            train.tokens_per_pack,
            self.device_kinds,
            self.here,
            self._measured_pass,
        )

    def _measured_pass(self) -> float:
        """Measure the time of a pack on this process, without those for which it would wait for others.

        Between the replicas of HSDP, a backward pass may wait for others, so its forward pass is measured.
        """
        beat("measuring the time of a pack", slow=True)
        is_sharded = self.config.parallel.mode == "fsdp"
        pack = self.runtime.place(self._first_pack())
        factor = torch.ones((), device=self.here.device)
        launch = self._recorded or self._launch_pass
        bare(self.model).weights_changed()
        self._gradients.begin()
        times = []
        for _ in range(UNMEASURED_PASSES + MEASURED_PASSES):
            began = time.perf_counter()
            if is_sharded:
                with torch.no_grad():
                    loss_sum = self._loss_sum(pack)
            else:
                with accumulating(self.model, is_last=False):
                    loss_sum = launch(pack, factor)
            loss_sum.item()  # waits for the device
            times.append(time.perf_counter() - began)
        self._gradients.detach()  # until a checkpoint is restored
        return median_low(times[UNMEASURED_PASSES:])

    def _shares(self, packs_per_step: int) -> tuple[int, ...]:
        """Return the number of packs of a step that each process has."""
        if self._seconds_per_pack is None:
            return even_shares(packs_per_step, self.here.world_size)
        shard_size = 1
        if self.config.parallel.mode == "fsdp":
            shard_size = self.config.parallel.shard_size
        return shares_by_speed(packs_per_step, self._seconds_per_pack, shard_size)

    @property
    def shares_text(self) -> str:
        """Packs of a process on each kind of device; empty if all processes have as many."""
        if self._seconds_per_pack is None:
            return ""
        return shares_text(self._shares(self.config.packs_per_step), self.device_kinds)

    def step(self, step: StepPacks, flags: Flags = NO_FLAGS, *, shares_times: bool = False) -> None:
        """Launch one optimizer step over this process's share of the step's packs.

        ``progress`` counts the step at once. It counts the loss when that is read, which is after the launch
        of the next step or in ``settle``. The flags of all processes are then in ``flag_counts``.

        Args:
            step: packs of the step.
            flags: flags of this process.
            shares_times: whether the step brings the times of all processes' passes, in ``pass_times``. All
                processes give the same value.

        Raises:
            NonFiniteLossError: if the previous step was not finite; without a failure flag, if this one is
                not.
            SickHardwareError: under the same conditions, if a repetition of the step blames the hardware.
        """
        here = self.here
        objective = self.objective
        runtime = self.runtime
        number = self.progress.step + 1
        lr = learning_rate(number, self.config.train.max_steps, objective.optim)
        self._set_learning_rate(lr)
        self._pass_times.next_step()
        self._gradients.begin()
        bare(self.model).weights_changed()
        # The loss is a mean over all targets of the step, on any process and in any micro-batch. Gradients
        # are averaged over processes, hence the factor world_size.
        num_targets = self._packs.begin(step).to(here.device)
        here.add_up(num_targets)
        # A step of few short records may have no target.
        num_targets = num_targets.clamp(min=1)
        factor = here.world_size / num_targets
        loss = torch.zeros((), device=here.device)
        # Without this flush, the first micro-batch would have a constant in place of the tensor.
        runtime.flush()
        launch = self._recorded or self._launch_pass
        for index in range(len(step.packs)):
            self._seed_dropout(number, pack_index=step.numbers[index])
            pack = runtime.place(self._packs.take())
            with (
                accumulating(self.model, is_last=index == len(step.packs) - 1),
                self._pass_times.measuring("pass"),
            ):
                loss_sum = launch(pack, factor)
            del pack  # it is freed before the next one is masked
            self._pass_times.end_pack()
            loss += loss_sum / num_targets
            runtime.flush()  # each micro-batch is the same graph
            step.passed()
            if number < self.config.train.max_steps:
                self._packs.mask_ahead(index + 1)
            self.beat()
        self._pass_times.stop()
        own = self._own_figures(loss)
        self._gradients.reduce()
        here.add_up(loss)
        figures = torch.stack([loss, clip_gradients(self.model, objective.optim.clip_norm)])
        sums = self._flags_on_device(flags)
        num_times = 0
        if shares_times and self._pass_times.is_enabled:
            times = self._pass_times.share()
            num_times = len(times)
            sums = torch.cat([sums, times])
        repeatable: _Repeatable | None = None
        if self._failed is not None:
            failed = self._failed + ~figures.isfinite().all()
            sums = torch.cat([sums, failed[None]])
            repeatable = _Repeatable(step, num_targets, own)
        here.add_up(sums)
        if self._failed is not None:
            # The optimizers read the flag, so the tensor stays the same one.
            self._failed.copy_(sums[-1].clamp(max=1))
        figures = torch.cat([figures, sums])
        runtime.flush()
        previous = self._launched
        self._launched = _Launched(number, lr, figures, num_times, repeatable)
        if self._failed is None:
            self.settle()  # before the optimizers change the weights
        for optimizer in self.optimizers:
            optimizer.step()
        self._gradients.end()
        runtime.flush()
        self.progress.add(step)
        self.has_stepped = True
        if previous is not None:
            self._read(previous)

    def _own_figures(self, loss: Tensor) -> Tensor:
        """Return this process's own loss and first gradient of a step, before both are added up.

        A single process needs no evidence against it, and its loss is known anyway.
        """
        if self._first_gradient is None:
            return self._no_flags
        self._first_gradient.read()
        gradient = self._first_gradient.value
        return torch.stack([loss] if gradient is None else [loss, gradient])

    def _flags_on_device(self, flags: Flags) -> Tensor:
        """Return flags as a new tensor on the device."""
        if not any(flags):
            return self._no_flags.clone()
        values = torch.tensor(flags, dtype=torch.float32)
        return to_device(values, self.here.device).to(self.here.device)

    def _launch_pass(self, pack: Any, factor: Tensor) -> Tensor:
        """Launch the forward and backward pass of a pack.

        Args:
            pack: input of the model on its device.
            factor: () factor on the loss whose gradient is added up.

        Returns:
            Sum of the losses of the pack's targets, () fp32 without a gradient.
        """
        loss_sum = self._loss_sum(pack)
        (loss_sum * factor).backward()
        return loss_sum.detach()

    def _loss_sum(self, pack: Any) -> Tensor:
        """Launch the forward pass of a pack, and return the sum of its losses."""
        with (
            torch.autocast(
                self.here.device.type, dtype=torch.bfloat16, enabled=self.dtype == torch.bfloat16
            ),
            self._pass_times.measuring("forward"),
        ):
            return self.objective.loss_sum(self.model, pack)

    def _set_learning_rate(self, lr: float) -> None:
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr

    def _seed_dropout(self, number: int, pack_index: int) -> None:
        """Make dropout a function of the run's seed, the step, and the index of a pack in the step.

        A resumed run draws the same numbers with any number of processes, and checkpoints need no state of
        the generator. Layers have no dropout, so recomputed layers draw no numbers.

        Args:
            number: number of the step, from 1 on.
            pack_index: index of the pack in the step.
        """
        seed = hash64(DROPOUT_SALT, self.config.train.seed, number - 1, pack_index)
        self.runtime.seed(int(seed[0] >> np.uint64(1)))  # torch takes 63 bits

    def settle(self) -> StepResult | None:
        """Wait for the last step. Call this before its weights are saved or scored.

        Returns:
            Result of the last step; None if this process has made none.

        Raises:
            NonFiniteLossError: at every call, if this step or an earlier one was not finite.
            SickHardwareError: under the same conditions, if a repetition of the step blames the hardware.
        """
        if self._launched is not None:
            self._read(self._launched)
            self._launched = None
        return self._result

    def _read(self, launched: _Launched) -> None:
        values = launched.figures(self.here)
        loss, norm, *flags = values[: 2 + len(NO_FLAGS)]
        after_flags = values[2 + len(NO_FLAGS) :]
        times = after_flags[: launched.num_times]
        not_finite = after_flags[launched.num_times :]
        if times:
            self.pass_times = self._pass_times.of_sum(times)
        self.flag_counts = FlagCounts(launched.number, *map(round, flags))
        if self._fault is None and (any(not_finite) or not are_finite([loss, norm])):
            figures = StepFigures(launched.number, loss, norm, launched.learning_rate)
            own: OwnFigures | None = None
            if launched.repeatable is not None:
                own = self._repeat(launched.number, launched.repeatable)
            self._fault = fault_of(figures, own, self.here, self.objective.lr_field)
        if self._fault is not None:
            raise self._fault
        self._result = StepResult(loss, norm, launched.learning_rate)
        self.progress.loss_sum += loss

    def _repeat(self, number: int, repeatable: _Repeatable) -> OwnFigures:
        """Repeat a step's passes on this process alone, and return its own figures.

        Afterwards, the run must end.

        Args:
            number: number of the step.
            repeatable: input of the step.
        """
        here = self.here
        runtime = self.runtime
        was_finite = are_finite(repeatable.own.tolist())
        beat("repeating a step that is not finite", slow=True)
        self._recorded = None  # its memory is needed
        self._pass_times.stop()
        try:
            bare(self.model).select_kernels(frozenset(), self.dtype)
            self._gradients.begin()
            bare(self.model).weights_changed()
            factor = here.world_size / repeatable.num_targets
            loss = torch.zeros((), device=here.device)
            with deterministic(), alone(self.model) as gradients_are_finite:
                for index, host in enumerate(repeatable.step.packs):
                    self._seed_dropout(number, pack_index=repeatable.step.numbers[index])
                    pack = self.objective.pack(host, self.shape, runtime.packs_on)
                    loss += self._launch_pass(runtime.place(pack), factor)
                is_finite = are_finite([loss.item()]) and gradients_are_finite()
        except (
            Exception
        ) as error:  # of any of the operations; the step's own error is reported anyway
            text = " ".join(str(error).split())[:MAX_PROBLEM_CHARS]
            return OwnFigures(was_finite, False, f"{type(error).__name__}: {text}")
        return OwnFigures(was_finite, is_finite)

    def release(self) -> None:
        """Free the model and the optimizers. Afterwards, only the progress may be used."""
        self._recorded = None
        self._packs.clear()
        self._gradients.release()
        self.optimizers.clear()
        del self.model
        if self.here.device.type == "cuda":
            torch.cuda.empty_cache()

    def beat(self) -> None:
        """Write a heartbeat. The first step of this process is slow, because it compiles and connects."""
        beat("training", slow=not self.has_stepped)

    def environment(self) -> dict[str, Any]:
        """Return machine, versions, precision and kernels of this start, for checkpoints and results."""
        found = {
            **environment(self.here.device),
            **self.precision.record(),
            KERNELS_FIELD: listed(self.kernels),
        }
        if self.shares_text:
            found[SHARES_FIELD] = self.shares_text
        return found

    def num_flops(self, record_tokens: int, attended_pairs: int) -> float:
        """Return the model FLOPs of the forward and backward pass; see ``hardware.num_flops``."""
        return num_flops(bare(self.model), record_tokens, attended_pairs)

    def steps(self, packs_per_step: int | None = None) -> Steps:
        """Iterate over the packs of every step from the run's position on. Every process calls this.

        Args:
            packs_per_step: number of packs of a step; None is that of the run file.
        """
        packs_per_step = packs_per_step or self.config.packs_per_step
        stream = self.objective.stream(self.objective.split, self.shape, self.config.train.seed)
        stream.shared_plans = node_plans(stream, packs_per_step, self.here)
        return Steps(
            stream,
            self.progress.position,
            packs_per_step,
            self.here.rank,
            self.here.world_size,
            Stager(self.runtime.packs_on),
            self._shares(packs_per_step),
        )

    def evaluate(self, split: RecordSplit, num_packs: int = 0) -> Evaluation:
        """Score the model on the first packs of a split; 0 scores all. Every process calls this."""
        self.settle()
        bare(self.model).weights_changed()
        place = Place(self.here, self.shape, self.dtype)
        return self.objective.evaluate(self.model, split, place, num_packs)
