"""Baselines of a regression on the variants of one protein, and whether the tuned model beats them.

The baselines are ridge regression on one-hot residues, the same with the zero-shot score of the model before
tuning (augmented, Hsu et al. 2022), that score alone, and a frozen probe. The ridge regressions are fitted to
all training variants. All are scored on the whole test split.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from seqlm.proteins.alphabet import encode
from seqlm.proteins.finetune.labelled import LabelledSplit, SampledSplit
from seqlm.proteins.finetune.prediction_file import Predictions, predictions_file
from seqlm.proteins.finetune.probes import Examples, fit_probe
from seqlm.proteins.inference.engine import EMBEDDING, Engine
from seqlm.proteins.inference.engine_probabilities import score_variants
from seqlm.proteins.inference.model_head import check_head
from seqlm.proteins.inference.variant_scores import SCORES, score_of
from seqlm.proteins.model.pretrained import load_model
from seqlm.proteins.mutations.edits import Variant, edits_between
from seqlm.runs.inference_commands import MASKED_LM
from seqlm.runs.run_file import RunFile
from seqlm.training.heartbeat import beat
from seqlm.training.objective import Place
from seqlm.training.whole_file import write_whole

from . import ridge
from .ranking import Difference, Doubles, Score, compared, ndcg, rmse, spearman, top_recall
from .records import VariantFacts, class_of_mutations

FILE = "variant_baselines.json"
MODEL = "tuned model"
ONE_HOT = "one-hot ridge"
AUGMENTED = "augmented ridge"
ZERO_SHOT = "zero-shot score"
PROBE = "frozen probe"
RIDGES = (ONE_HOT, AUGMENTED)
"""Baselines that the tuned model should beat."""
MAX_PROBE_PROTEINS = {"train": 1000, "validation": 300}
"""Variants to fit the frozen probe, because embeddings take longer than ridge regressions."""
PROBE_SHARE = 0.25
"""Share of the training's tokens that may be embedded for the frozen probe. An embedding is one pass of the
three that a training step takes, so the probe takes at most about a twelfth of the training."""
MAX_PARAMETERS = 1_000_000_000
"""Largest model before tuning that is run: it must fit on one device beside nothing else."""


@dataclass(frozen=True)
class _Part:
    """Variants of one split."""

    variants: list[Variant]
    labels: npt.NDArray[np.float32]
    """(N, C) measured values."""


@dataclass(frozen=True)
class _ByModel:
    """Predictions that need the model before tuning."""

    zero_shot: Doubles | None
    """(training and test variants,) scores; None if there are none."""
    probe: Doubles | None
    """(test variants, C) predictions; None if there are none."""
    notes: tuple[str, ...]
    """Reasons for what is missing."""


def variant_scores(
    direction: str, labels: npt.NDArray[Any], outputs: npt.NDArray[Any]
) -> dict[str, float]:
    """Return the scores of predictions, means over the columns.

    Args:
        direction: better values, ``higher`` or ``lower``.
        labels: (N, C) measured values, NaN where one is missing.
        outputs: (N, C) predictions.
    """
    sign = -1.0 if direction == "lower" else 1.0
    return {
        "spearman": _over_columns(spearman, labels, outputs),
        "ndcg": _over_columns(ndcg, sign * labels, sign * outputs),
        "top_recall": _over_columns(top_recall, sign * labels, sign * outputs),
        "rmse": _over_columns(rmse, labels, outputs),
    }


def _over_columns(score: Score, labels: npt.NDArray[Any], outputs: npt.NDArray[Any]) -> float:
    """Return the mean of a score over the columns that define it; NaN if none does."""
    found = []
    for truth, predicted in zip(labels.T, outputs.T, strict=True):
        known = np.isfinite(truth)
        found.append(score(truth[known].astype(np.float64), predicted[known].astype(np.float64)))
    finite = [value for value in found if math.isfinite(value)]
    return math.fsum(finite) / len(finite) if finite else math.nan


def write_variant_baselines(config: RunFile, place: Place) -> dict[str, Any]:
    """Score the baselines of a run, write them to its folder, and return results for people and programs."""
    assert config.task is not None
    direction = config.task.direction
    found = Predictions.load(predictions_file(config.run_dir, "test"))
    train = _part(config, "train")
    test = _part(config, "test")
    assert len(found.labels) == len(test.variants), "the test split is evaluated as a whole"
    print("baselines: ridge regressions on residues, and the model before tuning")
    by_model = _by_model(config, place, train, test)
    predictions: dict[str, Doubles] = {MODEL: found.outputs.astype(np.float64)}
    strengths: dict[str, list[float]] = {}
    design = ridge.one_hot([*train.variants, *test.variants])
    designs = {ONE_HOT: design}
    if by_model.zero_shot is not None:
        designs[AUGMENTED] = design.with_score(by_model.zero_shot)
    for name, features in designs.items():
        beat("fitting a ridge regression", slow=True)
        predictions[name], strengths[name] = _ridge(features, train, len(test.variants))
    if by_model.zero_shot is not None:
        of_test = by_model.zero_shot[len(train.variants) :]
        sign = -1.0 if direction == "lower" else 1.0
        predictions[ZERO_SHOT] = np.repeat(sign * of_test[:, None], test.labels.shape[1], axis=1)
    if by_model.probe is not None:
        predictions[PROBE] = by_model.probe
    scores = {
        name: variant_scores(direction, test.labels, outputs)
        for name, outputs in predictions.items()
    }
    if ZERO_SHOT in scores:
        scores[ZERO_SHOT]["rmse"] = math.nan  # its unit is another one
    better = max(
        (name for name in RIDGES if name in scores),
        key=lambda name: _or_least(scores[name]["spearman"]),
    )
    difference = compared(test.labels.astype(np.float64), predictions[MODEL], predictions[better])
    scores_found = {name: _finite(values) for name, values in scores.items()}
    document = {
        "split": "test",
        "train": len(train.variants),
        "test": len(test.variants),
        "direction": direction,
        "scores": scores_found,
        "strengths": strengths,
        "by_mutations": _by_mutations(direction, test, predictions),
        "better_baseline": better,
        "spearman_difference": asdict(difference),
        "beats": difference.is_better,
        "statement": statement(better, scores[MODEL], scores[better], difference),
        "notes": list(by_model.notes),
    }
    write_whole(config.run_dir / FILE, json.dumps(document, indent=1) + "\n")
    print(document["statement"])
    for note in by_model.notes:
        print(f"note: {note}")
    return {
        "baselines": {name: values for name, values in scores_found.items() if name != MODEL},
        **{name: document[name] for name in ("better_baseline", "spearman_difference", "beats")},
    }


def statement(
    better: str,
    model: Mapping[str, float],
    baseline: Mapping[str, float],
    difference: Difference,
) -> str:
    """Return the line that says whether the tuned model beats the better ridge regression."""
    verb = "beats" if difference.is_better else "does not beat"
    return (
        f"the tuned model {verb} the better baseline, {better}: Spearman {model['spearman']:.3f} against "
        f"{baseline['spearman']:.3f}, difference {difference.value:+.3f} (95 % of a paired bootstrap over "
        f"variants: {difference.low:+.3f} to {difference.high:+.3f})"
    )


def _or_least(value: float) -> float:
    return -math.inf if math.isnan(value) else value


def _finite(values: Mapping[str, float]) -> dict[str, float | None]:
    """Return values as JSON has them: null instead of NaN."""
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def _part(config: RunFile, name: str) -> _Part:
    """Return the variants of a split with their measured values."""
    split = LabelledSplit(config.data.path, name)  # type: ignore[arg-type]
    about = VariantFacts.of(split.facts)
    assert about is not None, "data of variants"
    wild = encode(about.wild_type)
    variants = []
    places, _ = split.draw(0, split.num_units, 0, 0)
    for one in places:
        tokens = split.token_ids(one).tobytes()
        variants.append(Variant("", edits_between(wild.tobytes(), tokens), wild))
    return _Part(variants, split.labels(np.arange(split.num_units)))


def _ridge(features: ridge.Design, train: _Part, num_test: int) -> tuple[Doubles, list[float]]:
    """Return the predictions for the test variants, (N, C), and the penalty of each column."""
    num_train = len(train.variants)
    of_test = features.rows(np.arange(num_train, num_train + num_test))
    columns = []
    strengths = []
    for target in train.labels.T.astype(np.float64):
        known = np.flatnonzero(np.isfinite(target))
        fitted = ridge.fit(features.rows(known), target[known])
        columns.append(fitted.predict(of_test))
        strengths.append(fitted.strength)
    return np.stack(columns, axis=1), strengths


def _by_model(config: RunFile, place: Place, train: _Part, test: _Part) -> _ByModel:
    """Return the predictions of the model before tuning, and the reasons for what is missing."""
    name = config.model.init_from
    if not name:
        return _ByModel(
            None,
            None,
            (
                "no zero-shot score, augmented ridge or probe: the model started from random weights",
            ),
        )
    model = load_model(name)
    if sum(parameter.numel() for parameter in model.parameters()) > MAX_PARAMETERS:
        return _ByModel(
            None,
            None,
            (
                "no zero-shot score, augmented ridge or probe: the model has over "
                f"{MAX_PARAMETERS:,} parameters",
            ),
        )
    engine = Engine(
        model,
        device=place.here.device,
        dtype=place.dtype,
        max_residues=config.model.max_residues,
        kernels=config.train.kernels,
    )
    notes = []
    score = score_of(config.inference.score)
    zero_shot = None
    variants = [*train.variants, *test.variants]
    is_masked_lm = True
    try:
        check_head("variants", name, model.config.architectures or [MASKED_LM])
    except ValueError:
        is_masked_lm = False
    if not is_masked_lm:
        notes.append(
            f"no zero-shot score and no augmented ridge: {name} is no masked language model"
        )
    elif not (score.takes_indels or all(variant.keeps_length for variant in variants)):
        others = ", ".join(other for other, one in SCORES.items() if one.takes_indels)
        notes.append(
            "no zero-shot score and no augmented ridge: variants insert or delete residues; "
            f"{others} takes them (inference.score), with one pass of the model per residue of each variant"
        )
    else:
        beat("scoring variants", slow=True)
        scored = score_variants(engine, variants[0].wild, variants, config.inference.score)
        zero_shot = np.array(scored)
    probe = None
    most = int(PROBE_SHARE * config.train.max_steps * config.train.tokens_per_step)
    num_embedded = min(len(train.variants), MAX_PROBE_PROTEINS["train"]) + len(test.variants)
    if num_embedded * len(test.variants[0].wild) > most:
        notes.append(
            f"no frozen probe: it would read over {most:,} residues, a quarter of what the training reads"
        )
    else:
        probe = _probe(config, engine, test)
    return _ByModel(zero_shot, probe, tuple(notes))


def _probe(config: RunFile, engine: Engine, test: _Part) -> Doubles:
    """Return the predictions of a linear model on embeddings, (N, C)."""
    run = partial(engine.run, answer=EMBEDDING)
    examples = []
    for name, most in MAX_PROBE_PROTEINS.items():
        part = SampledSplit(config.data.path, name, most)  # type: ignore[arg-type]
        examples.append(Examples(part.features(run), part.labels))
    train, validation = examples
    probe = fit_probe(part.schema, train, validation)
    embedded = np.stack(run([variant.tokens for variant in test.variants]))
    return probe.outputs(embedded).astype(np.float64)


def _by_mutations(
    direction: str, test: _Part, predictions: Mapping[str, Doubles]
) -> list[dict[str, Any]]:
    """Return the scores of the tuned model and of the ridge regressions by the number of mutations."""
    numbers = np.array([variant.num_mutations for variant in test.variants])
    classes = [class_of_mutations(number) for number in numbers.tolist()]
    found = []
    for name in dict.fromkeys(classes[index] for index in np.argsort(numbers, kind="stable")):
        chosen = np.array([one == name for one in classes])
        scores = {
            model: _finite(variant_scores(direction, test.labels[chosen], outputs[chosen]))
            for model, outputs in predictions.items()
            if model in (MODEL, *RIDGES)
        }
        found.append({"mutations": name, "variants": int(chosen.sum()), "scores": scores})
    return found
