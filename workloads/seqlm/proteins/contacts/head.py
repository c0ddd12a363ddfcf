"""Contacts from attention maps, as Rao et al. 2021 (doi:10.1101/2020.12.15.422761) predict them.

The attention maps between residues are symmetrized and corrected (APC), and a logistic regression over layers
and heads turns them into the probability of a contact. One layer is added to the logits at a time, so that
memory grows with L**2 H. Softmax, correction and sum are in fp32.

Published ESM-2 models have the regression in ``esm.contact_head``. For other models it is fitted on the
bundled chains and stored: in ``esm.contact_head`` of an ESM-2, in ``contact_head.json`` beside an ESMC.

Shapes: L residues, H heads, N layers.

Bundled protein chains have known contacts and secondary structure (``sample/README.md``).
"""

import base64
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from seqlm.proteins.alphabet import encode
from seqlm.proteins.families.table import family_of_type
from seqlm.proteins.inference.engine import Engine
from seqlm.proteins.model.arithmetic import layer_norm, operand
from seqlm.proteins.model.attention import rotate
from seqlm.proteins.model.packed_layer import PackedLayer, PackedTokens
from seqlm.proteins.model.packed_model import PackedModel
from seqlm.training.checksums import new_folder
from seqlm.training.data.small_file import MAX_CONFIG_BYTES, read_small
from seqlm.training.heartbeat import beat
from seqlm.training.scoring import check_finite
from seqlm.training.strict_yaml import shown

SHORTEST = 6
"""Smallest |i - j| of the pairs that a regression is fitted on."""
INVERSE_STRENGTH = 0.15
"""Inverse strength of the L1 penalty, scikit-learn's ``C``, as in Rao et al. 2021."""
FILE = "contact_head.json"
"""File of a regression beside a model that has no place for it."""
REGRESSION = "regression"
"""Name of the linear map in transformers' contact heads."""
Matrix = npt.NDArray[np.float32]
STRUCTURES_FILE = Path(__file__).parent / "sample" / "structures.json"
NO_LIMIT = 1 << 30
"""Distance along a chain that no chain reaches."""
RANGES = {"short": (6, 11), "medium": (12, 23), "long": (24, NO_LIMIT)}
"""Smallest and largest |i - j| of the classes of contacts (CASP)."""
SHARES: Mapping[str, float] = {"P@L": 1.0, "P@L/5": 0.2}
"""Numbers of the most probable pairs that count, divided by L, by the names of the precisions."""


class Pairs(NamedTuple):
    """Pairs of residues, i < j."""

    i: npt.NDArray[np.int64]
    j: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Chain:
    """Chain of L residues."""

    id: str
    sequence: str
    structure: str
    """H helix, E strand, C other, ``.`` unresolved; (L,)."""
    resolved: npt.NDArray[np.bool_]
    """(L,) whether the residue has coordinates."""
    contacts: npt.NDArray[np.bool_]
    """(L, L), symmetric: C-beta atoms (C-alpha of Gly) less than 8 A apart."""

    @cached_property
    def tokens(self) -> npt.NDArray[np.uint8]:
        return encode(self.sequence)

    def pairs(self, shortest: int, longest: int = NO_LIMIT) -> Pairs:
        """Return the resolved pairs with ``shortest`` <= j - i <= ``longest``."""
        i, j = np.triu_indices(len(self.sequence), shortest)
        kept = self.resolved[i] & self.resolved[j] & (j - i <= longest)
        return Pairs(i[kept], j[kept])


def chains(use: Literal["fit", "score"]) -> list[Chain]:
    """Return the chains to fit a regression, or those to score it."""
    return [_chain(row) for row in json.loads(STRUCTURES_FILE.read_text())[use]]


def _chain(row: dict[str, str]) -> Chain:
    """Return a chain of the file, in which a bit for each pair i < j says whether it is a contact."""
    length = len(row["sequence"])
    upper = np.triu_indices(length, 1)
    num_pairs = len(upper[0])
    packed = np.frombuffer(base64.b64decode(row["contacts"]), dtype=np.uint8)
    contacts = np.zeros((length, length), dtype=bool)
    contacts[upper] = np.unpackbits(packed, count=num_pairs).astype(bool)
    return Chain(
        id=row["id"],
        sequence=row["sequence"],
        structure=row["structure"],
        resolved=np.array([letter == "1" for letter in row["resolved"]]),
        contacts=contacts | contacts.T,
    )


def precision(
    chain: Chain, scores: npt.NDArray[np.floating], kind: str, share: float = 1.0
) -> float:
    """Return the share of contacts among the L * ``share`` highest scores of one class of pairs.

    Args:
        chain: chain with L resolved residues.
        scores: scores of all pairs, (L', L'); L' includes unresolved residues.
        kind: key of ``RANGES``.
        share: number of scores divided by L: 1 for the precision at L, 0.2 for that at L / 5.
    """
    i, j = chain.pairs(*RANGES[kind])
    count = max(1, int(chain.resolved.sum() * share))
    best = np.argsort(-scores[i, j], kind="stable")[:count]
    return float(chain.contacts[i, j][best].mean())


@dataclass(frozen=True)
class ContactHead:
    """Regression from attention maps to the logit of a contact."""

    weights: npt.NDArray[np.float32]
    """(N, H)."""
    bias: float

    def probabilities(
        self,
        engine: Engine,
        tokens: npt.NDArray[np.uint8],
        places: npt.NDArray[np.int64] | None = None,
    ) -> Matrix:
        """Return the probability of a contact for each pair of residues, (L, L).

        Args:
            engine: engine with the model.
            tokens: token ids of a protein, without CLS and EOS.
            places: places of the L residues, without those of linkers between chains; all by default.

        Raises:
            NotFiniteError: if a number is infinite or NaN.
        """
        length = len(tokens) if places is None else len(places)
        logits = torch.full((length, length), self.bias, device=engine.device)
        weights = torch.from_numpy(self.weights).to(engine.device)

        def add(layer: int, maps: Tensor) -> None:
            logits.add_(torch.einsum("h,hij->ij", weights[layer], maps))

        _each_layer(engine, tokens, add, places)
        probabilities = np.asarray(logits.sigmoid().cpu().numpy())
        check_finite(probabilities)
        return probabilities


def mean_precisions(engine: Engine, head: ContactHead, chains: Sequence[Chain]) -> dict[str, float]:
    """Return the mean precision at L over chains, for each class of ``RANGES``."""
    probabilities = [head.probabilities(engine, chain.tokens) for chain in chains]
    means = {}
    for kind in RANGES:
        precisions = [
            precision(chain, scores, kind)
            for chain, scores in zip(chains, probabilities, strict=True)
        ]
        means[kind] = float(np.mean(precisions))
    return means


def fit(engine: Engine, chains: Sequence[Chain]) -> ContactHead:
    """Fit the regression on the pairs of residues of chains with |i - j| >= 6."""
    from sklearn.linear_model import LogisticRegression

    features = []
    labels = []
    for chain in chains:
        pairs = chain.pairs(SHORTEST)
        features.append(_features(engine, chain, pairs))
        labels.append(chain.contacts[pairs.i, pairs.j])
    beat("fitting contacts", slow=True)
    regression = LogisticRegression(
        l1_ratio=1, C=INVERSE_STRENGTH, solver="liblinear", random_state=0
    )
    regression.fit(np.concatenate(features), np.concatenate(labels))
    weights = regression.coef_.reshape(_shape(engine.model)).astype(np.float32)
    return ContactHead(weights, float(regression.intercept_[0]))


def _shape(model: PackedModel) -> tuple[int, int]:
    """Return the numbers of layers and of heads in a layer, (N, H)."""
    return model.config.num_hidden_layers, model.config.num_attention_heads


def _features(engine: Engine, chain: Chain, pairs: Pairs) -> Matrix:
    """Return the values of all attention maps at pairs of residues, (pairs, N * H)."""
    rows = np.empty((len(pairs.i), *_shape(engine.model)), dtype=np.float32)

    def keep(layer: int, maps: Tensor) -> None:
        rows[:, layer] = maps[:, pairs.i, pairs.j].T.cpu().numpy()

    _each_layer(engine, chain.tokens, keep)
    return rows.reshape(len(rows), -1)


def load(model: PackedModel, name: str) -> ContactHead:
    """Return the regression of a model that was loaded from ``name``.

    Raises:
        ValueError: if none has been fitted, or it cannot be read.
    """
    shape = _shape(model)
    file = Path(name) / FILE
    if file.is_file():
        try:
            saved = json.loads(read_small(file, MAX_CONFIG_BYTES))
            weights = np.array(saved["weights"], dtype=np.float32).reshape(shape)
            return ContactHead(weights, float(saved["bias"]))
        except (OSError, ValueError, TypeError, LookupError, RecursionError) as error:
            reason = shown(f"{type(error).__name__}: {error}")
            raise ValueError(
                f"{file} is no contact head of this model ({reason}); fit it again with "
                "inference.fit_contacts=true"
            ) from error
    module = family_of_type(model.config.model_type).contact_head
    linear: Any = None if module is None else model.get_submodule(f"{module}.{REGRESSION}")
    # An unfitted head has transformers' first weights with a bias of 0. The bias of a fitted one is never 0.
    if linear is None or float(linear.bias) == 0:
        raise ValueError(
            f"{name} has no fitted contact head; fit it on the bundled structures with "
            "inference.fit_contacts=true, which stores it with the model folder"
        )
    return ContactHead(linear.weight.detach().cpu().numpy().reshape(shape), float(linear.bias))


def check_folder(name: str) -> None:
    """Raise ValueError unless the model is a folder of transformers' format, where a fit can be stored."""
    if not (Path(name) / "config.json").is_file():
        raise ValueError(
            f"inference.fit_contacts: {name} is no model folder, so the fit cannot be stored there"
        )


def save(model: PackedModel, name: str, head: ContactHead) -> Path:
    """Store a regression with the model folder; return the file that was written."""
    folder = Path(name)
    module = family_of_type(model.config.model_type).contact_head
    with new_folder(folder) as new:
        shutil.copytree(folder, new, symlinks=True, copy_function=os.link)
        if module is None:
            (new / FILE).write_text(
                json.dumps({"weights": head.weights.tolist(), "bias": head.bias}) + "\n"
            )
            return folder / FILE
        weight = f"{module}.{REGRESSION}.weight"
        bias = f"{module}.{REGRESSION}.bias"
        file = next(path for path in sorted(new.glob("*.safetensors")) if _has_tensor(path, weight))
        tensors = load_file(file)
        tensors[weight] = torch.from_numpy(head.weights.reshape(1, -1).copy())
        tensors[bias] = torch.tensor([head.bias])
        file.unlink()  # the old folder has the same file
        save_file(tensors, file, metadata={"format": "pt"})
    return folder / file.name


def _has_tensor(file: Path, name: str) -> bool:
    with safe_open(file, "pt") as tensors:
        return name in tensors.keys()  # noqa: SIM118


def _each_layer(
    engine: Engine,
    tokens: npt.NDArray[np.uint8],
    use: Callable[[int, Tensor], None],
    places: npt.NDArray[np.int64] | None = None,
) -> None:
    """Call a function for each layer, with its number and its symmetrized and corrected attention maps.

    Args:
        engine: engine with the model.
        tokens: token ids of a protein, (L,), without CLS and EOS.
        use: function of the layer's number, from 0, and its maps, (H, L, L) in fp32.
        places: places of the residues in the maps; all by default. The others are left out before the
            correction, as CLS and EOS are.
    """
    kept = None if places is None else torch.from_numpy(places).to(engine.device)

    def before(number: int, layer: PackedLayer, arguments: tuple[Any, ...]) -> None:
        beat("reading attention")
        hidden, normed, packed, *_ = arguments
        maps = _attention(layer, hidden, normed, packed)
        if kept is not None:
            maps = maps[:, kept][:, :, kept]
        use(number, _corrected(maps))

    hooks = [
        layer.register_forward_pre_hook(partial(before, number))
        for number, layer in enumerate(engine.model.layers)
    ]
    try:
        engine.encode(tokens)
    finally:
        for hook in hooks:
            hook.remove()


def _attention(
    layer: PackedLayer, hidden: Tensor, normed: Tensor | None, tokens: PackedTokens
) -> Tensor:
    """Return the attention of a layer between residues, (H, L, L), without CLS and EOS."""
    if normed is None:
        normed = operand(layer_norm(hidden, layer.attention_norm))
    q, k, _ = (x.float() for x in layer.attention_operands(normed))  # (L + 2, H, D)
    with torch.autocast(hidden.device.type, enabled=False):
        q = rotate(q, tokens.cos, tokens.sin).transpose(0, 1)
        k = rotate(k, tokens.cos, tokens.sin).transpose(0, 1)
        scores = q * q.shape[-1] ** -0.5 @ k.transpose(1, 2)
        return scores.softmax(dim=-1)[:, 1:-1, 1:-1]


def _corrected(maps: Tensor) -> Tensor:
    """Return symmetrized maps less the average product of their sums (APC; Dunn et al. 2008)."""
    maps = maps + maps.transpose(1, 2)
    sums = maps.sum(dim=-1, keepdim=True)  # (H, L, 1)
    return maps - sums * sums.transpose(1, 2) / sums.sum(dim=1, keepdim=True)
