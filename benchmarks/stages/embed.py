"""Stage 8: embeddings per second, compared with transformers' feature-extraction pipeline.

Contestants of a case, with the same weights on the same proteins of at most 1,022 residues:

* The pipeline with ``return_tensors=True`` in fp32, the type in which it loads a checkpoint, at several batch
  sizes. Proteins come in a random order, padded to the longest of a batch.
* ``lists`` is the pipeline at its best batch size without options. It returns nested lists.
* ``bf16`` is the pipeline at its best batch size, loaded in bf16, on devices that multiply bf16.
* Ours is ``Engine`` as ``make embed`` runs it, in fp32 on CPUs, and in bf16 on devices that multiply it.

Contestants are interleaved. Each gets the same new proteins in a round, and ratios are taken within a round.
On a CPU, each has one thread, and seconds are CPU time of the process. On CUDA, they are wall time. The
largest relative difference of a protein's embedding from that of the fp32 pipeline is reported, too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from transformers import pipeline

from benchmarks.case import Case, Settings, judged
from benchmarks.contestant import clock
from benchmarks.figures import DTYPES, extent, precisions_of, seconds_are
from benchmarks.ours import MAX_RESIDUES, drawn_proteins, model_folder, wanted_kernels
from seqlm.proteins.alphabet import decode
from seqlm.proteins.inference.engine import EMBEDDING, RESIDUE_EMBEDDINGS, Array, Engine
from seqlm.proteins.model.pretrained import load_model
from seqlm.training.config import KernelMode
from seqlm.training.kernels import KERNELS

GOALS = {("cpu", "8M"): 2.0, ("cuda", "8M"): 5.0, ("cuda", "650M"): 2.0}
"""Least ratio of our rate for mean embeddings to that of the fp32 pipeline at its best batch size, by kind of
device and size."""
EXACT = 1e-5
"""Largest relative difference of our fp32 embeddings from those of transformers."""
AS_GOOD = 2.0
"""Largest difference of our bf16 embeddings, in units of the bf16 pipeline's difference. Both round in the
same way, but which protein is the worst is chance."""
REHEARSED_PROTEINS = 3
REHEARSED_ROUNDS = 2
REHEARSED_BATCHES = [1, 8]
Tokens = npt.NDArray[np.uint8]


@dataclass
class Contestant:
    embed: Callable[[Sequence[Tokens]], list[Array]]
    rates: list[float] = field(default_factory=list)
    """Residues per second by round."""
    difference: float = 0.0


def cases(settings: Settings) -> list[Case]:
    """Return a case for each size and kind of embedding.

    A shape has the proteins of a round, the rounds, and the batch sizes of the pipeline.
    """
    shapes = {
        "8M": "proteins=512,rounds=4,batches=8/32/128",
        "650M": "proteins=96,rounds=4,batches=8/32",
    }
    seconds = 90  # estimated: on an H200, 60 s did not suffice
    if settings.device.type == "cpu" and not settings.rehearsal:
        shapes = {"8M": "proteins=20,rounds=5,batches=1/2/4/8"}
        seconds = 300
    found: list[Case] = []
    for size, shape in shapes.items():
        for each in ("mean", "residue"):
            found.append(Case("embed", size, each, shape, seconds))
    return found


def run(case: Case, settings: Settings) -> dict[str, Any]:
    values = case.values
    proteins = REHEARSED_PROTEINS if settings.rehearsal else int(values["proteins"])
    rounds = REHEARSED_ROUNDS if settings.rehearsal else int(values["rounds"])
    sizes = [int(size) for size in values["batches"].split("/")]
    if settings.rehearsal:
        sizes = REHEARSED_BATCHES
    if settings.device.type == "cpu":
        torch.set_num_threads(1)
    with TemporaryDirectory(prefix="bench-embed-") as name:
        folder = model_folder(case.size, settings, Path(name))
        drawn = drawn_proteins(settings, (rounds + 1) * proteins)
        by_round = [drawn[first : first + proteins] for first in range(0, len(drawn), proteins)]
        figures = measure(folder, by_round, sizes, case.contestant, settings)
    differences = {
        name: arm["largest_relative_difference"] for name, arm in figures["contestants"].items()
    }
    ours = figures["ours"]
    largest = EXACT if ours == "ours, fp32" else AS_GOOD * differences[f"{figures['best']}, bf16"]
    if differences[ours] > largest:
        return {**figures, "verdict": "missed"}
    goal = GOALS.get((settings.device.type, case.size))
    if goal is None or settings.rehearsal or case.contestant != "mean":
        return {**figures, "verdict": "measured"}
    is_met = figures["over_best"]["median"] >= goal
    return {**figures, "verdict": judged(has_goal=True, is_met=is_met)}


def measure(
    folder: Path, rounds: list[list[Tokens]], sizes: list[int], each: str, settings: Settings
) -> dict[str, Any]:
    """Return the figures of all contestants. The first round selects the pipeline's best batch size."""
    device = settings.device
    warm_up, *rounds = rounds
    load = partial(pipeline, "feature-extraction", model=str(folder), device=device)
    plain = partial(_pipeline, pipe=load(), each=each)
    arms = {
        f"pipeline, batch {size}": Contestant(partial(plain, batch_size=size)) for size in sizes
    }
    for arm in arms.values():
        _rate(arm, warm_up[: sizes[0]], device)  # the first products of a process are slow
    best = max(arms, key=lambda name: _rate(arms[name], warm_up, device))
    size = sizes[list(arms).index(best)]
    is_cuda = device.type == "cuda"
    # A CPU measures all batch sizes.
    if is_cuda:
        arms = {best: arms[best]}
    searched = len(arms)
    arms[f"{best}, lists"] = Contestant(partial(plain, batch_size=size, as_lists=True))
    types = precisions_of(device)
    if "bf16" in types:
        half = load(dtype=torch.bfloat16)
        arms[f"{best}, bf16"] = Contestant(partial(plain, pipe=half, batch_size=size))
    answer = EMBEDDING if each == "mean" else RESIDUE_EMBEDDINGS
    for precision in reversed(types):
        engine = Engine(
            load_model(str(folder)),
            device=device,
            dtype=DTYPES[precision],
            max_residues=MAX_RESIDUES,
            compile_from=0 if is_cuda else None,
            kernels=_kernels(settings),
        )
        engine.warm_up(answer)
        arms[f"ours, {precision}"] = Contestant(partial(engine.run, answer=answer))
    for arm in list(arms.values())[searched:]:
        _rate(arm, warm_up, device)
    for number, proteins in enumerate(rounds):
        # Every second round has the reverse order.
        order = list(arms) if number % 2 == 0 else list(reversed(arms))
        for name in order:
            arms[name].rates.append(_rate(arms[name], proteins, device))
        print(", ".join(f"{name} {arm.rates[-1]:,.0f}" for name, arm in arms.items()), flush=True)
        settings.record({"rates": {name: arm.rates for name, arm in arms.items()}})
    reference = arms[best].embed(rounds[0])
    for arm in arms.values():
        arm.difference = _largest_difference(arm.embed(rounds[0]), reference)
    engines = [name for name in arms if name.startswith("ours")]
    ours = max(engines, key=lambda name: sum(arms[name].rates))
    ratios: dict[str, dict[str, float]] = {}
    for name, arm in arms.items():
        if name != ours:
            pairs = zip(arms[ours].rates, arm.rates, strict=True)
            ratios[name] = extent([our_rate / their_rate for our_rate, their_rate in pairs])
    return {
        "seconds_are": seconds_are(device),
        "proteins_per_round": len(rounds[0]),
        "residues": sum(len(tokens) for proteins in rounds for tokens in proteins),
        "rounds": len(rounds),
        "best": best,
        "ours": ours,
        "over_best": ratios[best],
        "contestants": {
            name: {
                "residues_per_second": extent(arm.rates),
                "largest_relative_difference": arm.difference,
                "ours_over_it": ratios.get(name),
            }
            for name, arm in arms.items()
        },
    }


def _kernels(settings: Settings) -> KernelMode | frozenset[str]:
    """Return the kernels of a forward pass that the run asks for."""
    names = wanted_kernels(settings.kernels)
    if names is None:
        return "auto"
    return frozenset(name for name in names if KERNELS[name].for_inference)


def _largest_difference(found: list[Array], expected: list[Array]) -> float:
    """Return the largest relative difference of any protein's embedding."""
    differences = [
        float(np.linalg.norm(one - other) / np.linalg.norm(other))
        for one, other in zip(found, expected, strict=True)
    ]
    return max(differences)


def rows(lines: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Return one row per contestant of each case."""
    found: list[dict[str, str]] = []
    for line in lines:
        figures = line["figures"]
        for name, arm in figures["contestants"].items():
            found.append(
                {
                    "model": line["size"],
                    "embedding": line["contestant"],
                    "": name,
                    "residues/s, median": f"{arm['residues_per_second']['median']:,.0f}",
                    "largest difference": f"{arm['largest_relative_difference']:.1e}",
                    f"{figures['ours']} over it: median, rounds": _shown(arm["ours_over_it"]),
                }
            )
    return found


def _shown(ratio: dict[str, float] | None) -> str:
    return f"{ratio['median']:.2f} ({ratio['min']:.2f} - {ratio['max']:.2f})" if ratio else ""


def _pipeline(
    proteins: Sequence[Tokens], *, pipe: Any, batch_size: int, each: str, as_lists: bool = False
) -> list[Array]:
    # The pipeline fills batches only if it gets a generator.
    texts = (decode(tokens) for tokens in proteins)
    options = {} if as_lists else {"return_tensors": True}
    found = pipe(texts, batch_size=batch_size, **options)
    return [
        _rows(hidden, len(tokens), each) for hidden, tokens in zip(found, proteins, strict=True)
    ]


def _rows(hidden: Any, length: int, each: str) -> Array:
    """Return the answer for the residues of (1, T, C), without CLS, EOS and padding."""
    if isinstance(hidden, list):
        listed = np.asarray(hidden[0][1 : length + 1], dtype=np.float32)
        return listed.mean(axis=0) if each == "mean" else listed
    rows = hidden[0, 1 : length + 1].float()
    answer = rows.mean(dim=0) if each == "mean" else rows
    return cast(Array, answer.cpu().numpy())


def _rate(arm: Contestant, proteins: Sequence[Tokens], device: torch.device) -> float:
    started = clock(device)
    arm.embed(proteins)  # its results are on the host, so the device is idle
    return sum(map(len, proteins)) / (clock(device) - started)
