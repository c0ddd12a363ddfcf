"""Stage 8: embeddings per second beside transformers' feature-extraction pipeline.

Contestants of a case, with the same weights on the same proteins of at most 1,022 residues:

* the pipeline with ``return_tensors=True`` in fp32, the type in which it loads a checkpoint, at several batch
  sizes. Proteins come in a drawn order, padded to the longest of a batch;
* ``lists``: the pipeline at its best batch size without options, which returns nested lists;
* ``bf16``: the pipeline at its best batch size, loaded in bf16, where the device multiplies bf16;
* ours: ``Engine`` as ``make embed`` runs it, in fp32 on CPUs, and in bf16 where the device multiplies it.

Contestants take turns. A round gives each the same fresh proteins, and ratios are taken within a round. On a
CPU each has one thread, and a second is one of the process's CPU time. On CUDA it is wall time. The largest
relative difference of a protein's embedding from that of the fp32 pipeline is reported, too.
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

from benchmarks.case import Case, Settings
from benchmarks.contestant import clock
from benchmarks.figures import DTYPES, extent, precisions_of, seconds_are
from benchmarks.ours import MAX_RESIDUES, drawn_proteins, model_folder
from seqlm.proteins.alphabet import decode
from seqlm.proteins.inference.engine import EMBEDDING, RESIDUE_EMBEDDINGS, Array, Engine
from seqlm.proteins.model.pretrained import load_model

CPU_GOAL = 2.0
"""Mean embeddings at 8M over the fp32 pipeline at its best batch size."""
EXACT, AS_GOOD = 1e-5, 2.0
"""Relative difference up to which fp32 embeddings count as those of transformers in fp32, and how far bf16
ones may be off in terms of the bf16 pipeline's difference. Both round alike; the worst protein is chance."""
Tokens = npt.NDArray[np.uint8]


@dataclass
class Contestant:
    embed: Callable[[Sequence[Tokens]], list[Array]]
    rates: list[float] = field(default_factory=list)
    """Residues per second by round."""
    difference: float = 0.0


def cases(settings: Settings) -> list[Case]:
    """Sizes with the proteins of a round, the rounds, and the batch sizes of the pipeline."""
    large, small = "proteins=512,rounds=4,batches=8/32/128", "proteins=96,rounds=4,batches=8/32"
    shapes, seconds = {"8M": large, "650M": small}, 45
    if settings.device.type == "cpu" and not settings.rehearsal:
        shapes, seconds = {"8M": "proteins=20,rounds=5,batches=1/2/4/8"}, 300
    kinds = ("mean", "residue")
    return [Case("embed", size, each, shape, seconds) for size, shape in shapes.items() for each in kinds]


def run(case: Case, settings: Settings) -> dict[str, Any]:
    values = case.values
    proteins, rounds = (3, 2) if settings.rehearsal else (int(values["proteins"]), int(values["rounds"]))
    sizes = [1, 8] if settings.rehearsal else [int(size) for size in values["batches"].split("/")]
    if settings.device.type == "cpu":
        torch.set_num_threads(1)
    with TemporaryDirectory(prefix="bench-embed-") as name:
        folder = model_folder(case.size, settings, Path(name))
        drawn = drawn_proteins(settings, (rounds + 1) * proteins)
        by_round = [drawn[first : first + proteins] for first in range(0, len(drawn), proteins)]
        figures = measure(folder, by_round, sizes, case.contestant, settings.device)
    off = {name: arm["largest_relative_difference"] for name, arm in figures["contestants"].items()}
    ours, best = figures["ours"], figures["best"]
    is_good = off[ours] <= (EXACT if ours == "ours, fp32" else AS_GOOD * off[f"{best}, bf16"])
    has_goal = settings.device.type == "cpu" and not settings.rehearsal and case.contestant == "mean"
    if has_goal:
        is_good &= figures["over_best"]["median"] >= CPU_GOAL
    return {**figures, "verdict": "missed" if not is_good else "passed" if has_goal else "measured"}


def measure(
    folder: Path, rounds: list[list[Tokens]], sizes: list[int], each: str, device: torch.device
) -> dict[str, Any]:
    """Rates of all contestants. The first round warms up and finds the pipeline's best batch size."""
    warm_up, *rounds = rounds
    load = partial(pipeline, "feature-extraction", model=str(folder), device=device)
    plain = partial(_pipeline, pipe=load(), each=each)
    arms = {f"pipeline, batch {size}": Contestant(partial(plain, batch_size=size)) for size in sizes}
    for arm in arms.values():
        _rate(arm, warm_up[: sizes[0]], device)  # the first products of a process are slow
    best = max(arms, key=lambda name: _rate(arms[name], warm_up, device))
    size = sizes[list(arms).index(best)]
    is_cuda = device.type == "cuda"
    if is_cuda:  # one thread of a CPU has time for all of them
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
        )
        engine.warm_up(answer)
        arms[f"ours, {precision}"] = Contestant(partial(engine.run, answer=answer))
    for arm in list(arms.values())[searched:]:
        _rate(arm, warm_up, device)
    for number, proteins in enumerate(rounds):
        for name in list(arms) if number % 2 == 0 else list(reversed(arms)):
            arms[name].rates.append(_rate(arms[name], proteins, device))
        print(", ".join(f"{name} {arm.rates[-1]:,.0f}" for name, arm in arms.items()), flush=True)
    reference = arms[best].embed(rounds[0])
    for arm in arms.values():
        arm.difference = max(
            float(np.linalg.norm(a - b) / np.linalg.norm(b))
            for a, b in zip(arm.embed(rounds[0]), reference, strict=True)
        )
    ours = max((name for name in arms if name.startswith("ours")), key=lambda name: sum(arms[name].rates))
    ratios = {
        name: extent([a / b for a, b in zip(arms[ours].rates, arm.rates, strict=True)])
        for name, arm in arms.items()
        if name != ours
    }
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


def rows(lines: list[dict[str, Any]]) -> list[dict[str, str]]:
    """One row per contestant of each case."""
    return [
        {
            "model": line["size"],
            "embedding": line["contestant"],
            "": name,
            "residues/s, median": f"{arm['residues_per_second']['median']:,.0f}",
            "largest difference": f"{arm['largest_relative_difference']:.1e}",
            f"{line['figures']['ours']} over it: median, rounds": _shown(arm["ours_over_it"]),
        }
        for line in lines
        for name, arm in line["figures"]["contestants"].items()
    ]


def _shown(ratio: dict[str, float] | None) -> str:
    return f"{ratio['median']:.2f} ({ratio['min']:.2f} - {ratio['max']:.2f})" if ratio else ""


def _pipeline(
    proteins: Sequence[Tokens], *, pipe: Any, batch_size: int, each: str, as_lists: bool = False
) -> list[Array]:
    texts = (decode(tokens) for tokens in proteins)  # a generator makes the pipeline fill batches
    found = pipe(texts, batch_size=batch_size, **({} if as_lists else {"return_tensors": True}))
    return [_rows(hidden, len(tokens), each) for hidden, tokens in zip(found, proteins, strict=True)]


def _rows(hidden: Any, length: int, each: str) -> Array:
    """Answer for the residues of (1, T, C), which begins with CLS and ends with EOS and padding."""
    if isinstance(hidden, list):
        listed = np.asarray(hidden[0][1 : length + 1], dtype=np.float32)
        return listed.mean(axis=0) if each == "mean" else listed
    rows = hidden[0, 1 : length + 1].float()
    return cast(Array, (rows.mean(dim=0) if each == "mean" else rows).cpu().numpy())


def _rate(arm: Contestant, proteins: Sequence[Tokens], device: torch.device) -> float:
    started = clock(device)
    arm.embed(proteins)  # its results lie on the host: the device is idle
    return sum(map(len, proteins)) / (clock(device) - started)
