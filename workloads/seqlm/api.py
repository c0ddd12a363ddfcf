"""Python interface: a model, and the answers of the commands as numpy arrays and pandas tables.

    import seqlm

    model = seqlm.load("facebook/esm2_t6_8M_UR50D")
    model.embed(["MKTAYIAKQRQISFVKSHFSRQ"])  # (1, 320)

Proteins are a list of sequences, or a mapping of ids to sequences, in the letters A-Z. Blanks and a final
``*`` are dropped. A protein above the model's longest is read in windows, as ``seqlm embed`` reads it.

A record with several chains is a text such as ``VH|VL``, or a mapping of the names of its chains to their
sequences. ``chains`` says how it is read, as ``inference.chains``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from tqdm import tqdm

from seqlm.commands.scored_models import scorecard as scorecard
from seqlm.proteins.config import (
    ProposeConfig,
    SplitConfig,
    TaskConfig,
    propose_violations,
    variant_violations,
)
from seqlm.proteins.contacts import head as contact_head
from seqlm.proteins.data.chained import chained_text, complex_of
from seqlm.proteins.data.plausibility import is_nucleotides
from seqlm.proteins.families.table import family_of_type
from seqlm.proteins.finetune.variants.kinds import VARIANT_SPLITS
from seqlm.proteins.finetune.variants.records import assigned_splits
from seqlm.proteins.finetune.variants.wild_type import read_wild_type
from seqlm.proteins.inference.described import described_proteins
from seqlm.proteins.inference.embed import layer_embeddings, layer_numbers
from seqlm.proteins.inference.engine import TOKENS_PER_PACK, Answer, Array, Engine, compile_from
from seqlm.proteins.inference.engine_probabilities import pseudo_perplexity, score_variants
from seqlm.proteins.inference.model_head import check_head
from seqlm.proteins.inference.mutation_table import check_indels
from seqlm.proteins.inference.poolings import pooling_of
from seqlm.proteins.inference.predict import Head, predictions
from seqlm.proteins.inference.records import Protein, proteins_of
from seqlm.proteins.inference.variant_scores import MASKED_MARGINALS, score_of
from seqlm.proteins.model.pretrained import load_model
from seqlm.proteins.mutations.fitting import check_numbering, parse_variant
from seqlm.proteins.mutations.in_chains import check_numbering_of, single_mutants_of, variant_named
from seqlm.proteins.reading.chain_modes import JOINING_MODES, ChainMode, chain_mode
from seqlm.proteins.reading.chains import ChainSpan, Complex, choice_needed, has_chains
from seqlm.proteins.reading.policies import Kind, Reader
from seqlm.proteins.reading.rejects import Reject, stopped
from seqlm.proteins.reading.sequences import SequenceError, read_sequence
from seqlm.runs.inference_commands import MASKED_LM
from seqlm.runs.model_names import check_model_name, short_training
from seqlm.training.config import TrainConfig, read_section
from seqlm.training.precision import select_precision
from seqlm.training.strict_yaml import shown

if TYPE_CHECKING:
    import pandas as pd

    from seqlm.proteins.structures.chains import Structure, StructureChain

Record = str | Mapping[str, str]
"""Sequence, or the sequences of chains by their names."""
Proteins = Sequence[Record] | Mapping[str, Record]
"""Sequences, or ids with their sequences."""
PROGRESS_RESIDUES = 2_000
"""Smallest number of residues for which a progress bar is shown."""
LEAST_PARAMETERS = 1_000_000
"""Smallest number of parameters with which a model can learn much about proteins."""


def load(
    name: str,
    *,
    device: str | None = None,
    precision: str = "auto",
    kernels: str = "auto",
    allow_nucleotides: bool = False,
) -> Model:
    """Load a model.

    Args:
        name: model folder, checkpoint folder or hub id.
        device: ``cpu`` or ``cuda:0``; by default the first GPU, or else the CPU.
        precision: ``auto``, ``bf16`` or ``fp32``, as ``train.precision``.
        kernels: ``auto``, ``on`` or ``off``, as ``inference.kernels``.
        allow_nucleotides: accept sequences that look like DNA or RNA.

    Raises:
        ValueError: if the model is missing or damaged, its family is unknown, or a setting is not allowed.
    """
    check_model_name("model", name)
    if precision not in ("auto", "bf16", "fp32"):
        raise ValueError(f"precision: got {precision!r}; allowed are auto, bf16 and fp32")
    if kernels not in ("auto", "on", "off"):
        raise ValueError(f"kernels: got {kernels!r}; allowed are auto, on and off")
    default_device = "cuda:0" if torch.cuda.is_available() else "cpu"
    place = torch.device(device or default_device)
    if place.type not in TOKENS_PER_PACK:
        raise ValueError(f"device: got {device!r}; allowed are {' and '.join(TOKENS_PER_PACK)}")
    train = TrainConfig(precision=precision)  # type: ignore[arg-type]
    model = load_model(name)
    engine = Engine(
        model,
        device=place,
        dtype=select_precision(train, place).dtype,
        max_residues=family_of_type(model.config.model_type).max_residues,
        compile_from=compile_from(train, place),
        kernels=kernels,  # type: ignore[arg-type]  # checked above
    )
    return Model(name, engine, allow_nucleotides=allow_nucleotides)


def sample_table() -> pd.DataFrame:
    """Return the bundled table of 5,347 proteins with their locations in the cell.

    The columns and the licence (CC BY 4.0, UniProt) are described in ``proteins/finetune/sample/README.md``.
    """
    import pandas as pd

    from seqlm.proteins.finetune.prepare import TABLES

    return pd.read_csv(TABLES.sample)


def split_variants(
    wild_type: str,
    variants: Sequence[str],
    kind: str = "random",
    *,
    validation_fraction: float = 0.05,
    first_position: int = 1,
    **options: Any,
) -> pd.DataFrame:
    """Return the split of each variant of a protein, as a run with ``task.split.variants`` makes it.

    Args:
        wild_type: sequence of the protein.
        variants: names of variants, such as ``A42G:K50R``, or whole sequences.
        kind: kind of the split, as ``task.split.variants``.
        validation_fraction: share of the variants that validate, for kinds without folds.
        first_position: number of the protein's first residue in the names.
        options: other fields of ``task.split``: ``folds``, ``fold`` and ``max_train_mutations``.

    Returns:
        Table with the columns ``variant``, ``mutations`` (number of them) and ``split``.

    Raises:
        ValueError: if a name does not fit the protein, an option is not allowed, or a split has no variant.
    """
    import pandas as pd

    def violations(split: SplitConfig) -> Iterator[str]:
        return variant_violations(TaskConfig(kind="regression", split=split))

    if kind not in VARIANT_SPLITS:
        raise ValueError(f"kind: got {kind!r}; allowed are {', '.join(VARIANT_SPLITS)}")
    if not 0 < validation_fraction < 1:
        raise ValueError(
            f"validation_fraction: got {validation_fraction!r}; allowed are numbers between 0 and 1"
        )
    if not isinstance(wild_type, str):
        raise ValueError(f"wild_type: got {wild_type!r}; expected a sequence as text")
    names = _names("variants", variants)
    first = _whole_number("first_position", first_position)
    split = read_section(SplitConfig, {"variants": kind, **options}, "task.split", violations)
    protein = read_wild_type(wild_type, None)
    check_numbering(names, protein, first, "first_position")
    parsed = [parse_variant(name, protein, first, "first_position") for name in names]
    words = assigned_splits(split, parsed, [shown(name) for name in names], validation_fraction)
    numbers = [one.num_mutations for one in parsed]
    return pd.DataFrame({"variant": names, "mutations": numbers, "split": words})


def sample_structure() -> Path:
    """Return the file of the bundled structure, entry 5PTI of the PDB.

    Source and licence (CC0 1.0) are described in ``proteins/structures/sample/README.md``.
    """
    from seqlm.proteins.structures.chains import SAMPLE

    return SAMPLE


def read_structure(path: str | Path) -> Structure:
    """Return the protein chains of a structure in PDB or mmCIF format, compressed or not.

    Its ``sequences`` are proteins for the methods of a model. Each of its ``chains`` has ``contacts()``.

    Raises:
        ValueError: if the file is no structure or cannot be read, or gemmi is not installed.
    """
    from seqlm.proteins.structures.chains import read_structure as read

    return read(Path(path))


def contact_precision(chain: StructureChain, probabilities: npt.ArrayLike) -> pd.DataFrame:
    """Return the precision of contacts by range, in the columns range, pairs, contacts, P@L and P@L/5.

    Args:
        chain: chain of L residues of a structure.
        probabilities: probability of each pair, (L, L), as ``Model.contacts`` returns them.

    Raises:
        ValueError: if the probabilities have another shape.
    """
    import pandas as pd

    from seqlm.proteins.contacts.truth import known_contacts, precisions

    length = len(chain.sequence)
    scores = np.asarray(probabilities, dtype=np.float32)
    if scores.shape != (length, length):
        raise ValueError(
            f"probabilities: got the shape {scores.shape}; expected {(length, length)} for {chain.id}"
        )
    found = precisions(known_contacts(chain), scores)
    rows = [
        {"range": one.range, "pairs": one.num_pairs, "contacts": one.num_contacts, **one.shares}
        for one in found
    ]
    return pd.DataFrame(rows)


class Model:
    """Loaded model; ``load`` returns one."""

    def __init__(self, name: str, engine: Engine, *, allow_nucleotides: bool = False) -> None:
        self.name = name
        self._engine = engine
        self._allow_nucleotides = allow_nucleotides

    def __repr__(self) -> str:
        num_parameters = sum(weights.numel() for weights in self._engine.model.parameters())
        size = (
            f"{self.name}: {num_parameters / 1e6:,.1f} million parameters on {self._engine.device}"
        )
        if num_parameters < LEAST_PARAMETERS:
            return f"{size}. This model is tiny: its figures prove only the mechanics"
        warning = short_training(self.name)
        return f"{size}. {warning}" if warning else size

    def embed(
        self,
        proteins: Proteins,
        *,
        pooling: str = "mean",
        layer: int = -1,
        chains: str | None = None,
    ) -> Array | list[Array]:
        """Return embeddings of C features.

        Args:
            proteins: sequences, or a mapping of ids to sequences.
            pooling: name of ``seqlm.proteins.inference.poolings.POOLINGS``, as for ``inference.pooling``.
            layer: number of the layer: 0 is the embedding, and -1 the last layer with its norm.
            chains: reading of records with several chains: ``separate``, ``linker`` or ``joined``.

        Returns:
            float32 array (N, C), or a list of arrays (L, C) if the pooling keeps one vector per residue. With
            ``separate``, each chain counts in N.

        Raises:
            ValueError: for an unknown pooling or layer, or a sequence that is no protein.
        """
        layers = layer_numbers((layer,), len(self._engine.model.layers))
        answer = layer_embeddings(layers, (pooling,))
        found = self._run(self._read(proteins, chains), answer)
        if pooling_of(pooling).per_residue:
            return found
        size: int = self._engine.model.config.hidden_size
        return np.stack(found) if found else np.empty((0, size), dtype=np.float32)

    def predict(self, proteins: Proteins, *, chains: str | None = None) -> pd.DataFrame:
        """Return a fine-tuned model's labels and probabilities, in the columns of ``seqlm predict``.

        Args:
            proteins: sequences, or a mapping of ids to sequences.
            chains: reading of records with several chains, as the model was fine-tuned.

        Raises:
            ValueError: if the model has not been fine-tuned, or a sequence is no protein.
        """
        head = Head.of(self._engine.model, self.name)
        known = self._read(proteins, chains)
        values = [head.kind.values(found) for found in self._run(known, head.answer)]
        columns = described_proteins(known, has_chains=_joins(chains))
        return pa.table({**columns, **predictions(head, values)}).to_pandas()

    def variants(
        self,
        sequence: Record,
        mutations: Sequence[str] | None = None,
        *,
        score: str = MASKED_MARGINALS,
        first_position: int = 1,
        chains: str | None = None,
    ) -> pd.DataFrame:
        """Return the scores of variants in nats, in the columns mutation and score.

        Args:
            sequence: wild type, maybe of several chains.
            mutations: names of variants such as ``A42G``, ``A42G:K50R`` for several mutations at once, HGVS
                as ``p.Ala42del``, or whole sequences; by default every single mutant.
            score: kind of score, as ``inference.score``.
            first_position: number of the first residue in the names.
            chains: reading of several chains, ``linker`` or ``joined``. Mutations then name their chain, as
                in ``H.A42G``.

        Raises:
            ValueError: if the model has a task, there is no such score, or a mutation does not fit the wild
                type or the score.
        """
        import pandas as pd

        self._check_masked()
        protein = self._read_one(sequence, chains)
        chosen = score_of(score)
        first = _whole_number("first_position", first_position)
        if mutations is None:
            wanted = single_mutants_of(protein, first)
        else:
            names = _names("mutations", mutations)
            check_numbering_of(names, protein, first, "first_position")
            wanted = [variant_named(name, protein, first, "first_position") for name in names]
        for variant in wanted:
            check_indels(variant, score)
        window = min(len(protein.tokens), self._engine.max_residues)
        num_reads = chosen.num_reads(protein.tokens, wanted)
        with self._progress("variants", window * num_reads):
            scores = score_variants(self._engine, protein.tokens, wanted, score)
        return pd.DataFrame(
            {"mutation": [one.name for one in wanted], "score": np.array(scores, dtype=np.float32)}
        )

    def propose(
        self,
        sequence: str,
        measured: Mapping[str, float | Sequence[float]] | pd.Series | None = None,
        *,
        score: str = MASKED_MARGINALS,
        first_position: int = 1,
        **options: Any,
    ) -> pd.DataFrame:
        """Return the variants to measure next, in the columns of ``seqlm propose``.

        Args:
            sequence: wild type.
            measured: values of variants by name, or lists of replicates; none before the first round. In a
                series of pandas, names may repeat.
            score: kind of score of the model, a sum over mutations.
            first_position: number of the first residue in the names.
            options: fields of the run file's section ``propose``, such as ``direction="higher"`` and
                ``number=96``.

        Raises:
            ValueError: if the model has a task, an option is wrong, or a variant does not fit the wild type.
        """
        import pandas as pd

        from seqlm.proteins.propose.command import COLUMNS, check_score, proposals, rows_of
        from seqlm.proteins.propose.measured import measured_of, no_values

        self._check_masked()
        check_score(score)
        chosen = read_section(ProposeConfig, options, "propose", propose_violations)
        first = _whole_number("first_position", first_position)
        if measured is not None and not hasattr(measured, "items"):
            raise ValueError(
                f"measured: got {type(measured).__name__}; expected values by the names of variants, such as "
                "{'A42G': 1.2}"
            )
        values = [] if measured is None else list(measured.items())
        if values and chosen.direction is None:
            raise ValueError("direction: got None with measured values; give higher or lower")
        if not isinstance(sequence, str) or has_chains(sequence):
            raise ValueError(f"sequence: got {shown(str(sequence))}; expected one chain as text")
        protein = self._read_one(sequence, None)
        known = no_values()
        if values:
            known = measured_of(values, chosen, protein, first)
        found = proposals(self._engine, protein, known, chosen, score, first, "first_position")
        rows = rows_of(found.proposals, known.num_rounds + 1)
        return pd.DataFrame(rows, columns=list(COLUMNS))

    def contacts(self, sequence: Record, *, chains: str | None = None) -> Array:
        """Return the probability of a contact (C-beta below 8 A) for each pair of residues, (L, L).

        Args:
            sequence: protein, maybe of several chains, whose residues follow each other in the result.
            chains: reading of several chains, ``linker`` or ``joined``.

        Raises:
            ValueError: if the model has no fitted contact head, or the protein is above the longest allowed.
        """
        protein = self._read_one(sequence, chains)
        longest = self._engine.max_residues
        if len(protein.tokens) > longest:
            raise ValueError(
                f"the sequence has {len(protein.tokens)} residues; allowed are {longest} for contacts"
            )
        head = contact_head.load(self._engine.model, self.name)
        places = protein.places if protein.chains else None
        return head.probabilities(self._engine, protein.tokens, places)

    def perplexity(
        self, proteins: Proteins, *, chains: str | None = None
    ) -> npt.NDArray[np.float64]:
        """Return the pseudo-perplexity of each protein, (N,): exp of the mean of -log p, each residue masked.

        Salazar et al. 2020 (doi:10.18653/v1/2020.acl-main.240).

        Args:
            proteins: sequences, or a mapping of ids to sequences.
            chains: reading of records with several chains: ``separate``, ``linker`` or ``joined``.

        Raises:
            ValueError: if the model has a task, or a sequence is no protein.
        """
        self._check_masked()
        known = self._read(proteins, chains)
        num_read = 0
        for protein in known:
            length = len(protein.tokens)
            num_read += protein.num_residues * min(length, self._engine.max_residues)
        with self._progress("perplexity", num_read):
            return np.array(
                [pseudo_perplexity(self._engine, one.tokens, one.places.tolist()) for one in known]
            )

    def _check_masked(self) -> None:
        """Raise ValueError if the model is no masked language model."""
        check_head("variants", self.name, self._engine.model.config.architectures or [MASKED_LM])

    def _read(self, proteins: Proteins, chains: str | None = None) -> list[Protein]:
        """Check and encode sequences; without ids they are numbered from 0.

        Args:
            proteins: sequences, or a mapping of ids to sequences.
            chains: reading of records with several chains.

        Raises:
            ValueError: if a sequence is no protein, or the reading is needed and missing, or unknown.
        """
        if isinstance(proteins, str):
            raise ValueError(
                "proteins: got one string; give a list of sequences, or ids and sequences"
            )
        mode = None if chains is None else chain_mode(chains)
        named = proteins if isinstance(proteins, Mapping) else dict(enumerate(proteins))
        found = []
        for name, record in named.items():
            shown = str(name) if isinstance(proteins, Mapping) else f"protein {name}"
            for protein in self._proteins(str(name), record, shown, mode):
                spans = protein.chains or (ChainSpan("", 0, len(protein.tokens)),)
                parts = [protein.tokens[span.start : span.stop] for span in spans]
                if not self._allow_nucleotides and any(map(is_nucleotides, parts)):
                    raise _refusal(
                        Kind.NUCLEOTIDES,
                        shown,
                        "the sequence looks like DNA or RNA; give its translation, or load the model with "
                        "allow_nucleotides=True",
                    )
                found.append(protein)
        return found

    def _read_one(self, sequence: Record, chains: str | None) -> Protein:
        """Check and encode one protein, whose chains are read together.

        Raises:
            ValueError: if the sequence is no protein, or its chains are to be read one by one.
        """
        if chains is not None and not chain_mode(chains).joins:
            raise ValueError(
                f"chains: got {chains!r} for one record; allowed are {' and '.join(JOINING_MODES)}"
            )
        [protein] = self._read({"the sequence": sequence}, chains)
        return protein

    @staticmethod
    def _proteins(name: str, record: Record, shown: str, mode: ChainMode | None) -> list[Protein]:
        """Return the proteins that the model reads of a record.

        Raises:
            ValueError: if it is no protein, or has several chains and there is no mode.
        """
        whole: Complex | Reject | None = None
        if isinstance(record, Mapping):
            texts = {str(chain): text for chain, text in record.items()}
            wrong = [text for text in texts.values() if not isinstance(text, str)]
            if wrong:
                raise ValueError(f"{shown}: got {wrong[0]!r}; expected a sequence as text")
            whole = complex_of(name, list(texts.items()), where=shown, file="")
        elif not isinstance(record, str):
            raise ValueError(
                f"{shown}: got {record!r}; expected a sequence as text, or chains and their sequences"
            )
        elif has_chains(record):
            whole = chained_text(name, record, None, where=shown, file="")
        if isinstance(whole, Reject):
            raise stopped(Reader.PYTHON, whole)
        if whole is not None:
            if mode is None:
                raise _refusal(Kind.CHAINS, shown, choice_needed(whole, "chains"))
            return proteins_of(whole, mode)
        try:
            tokens = read_sequence(str(record))
        except SequenceError as error:
            raise _refusal(error.kind, shown, str(error)) from None
        if not len(tokens):
            raise _refusal(Kind.EMPTY, shown, "the sequence is empty; give at least one residue")
        return [Protein(name, tokens, "")]

    def _run(self, proteins: list[Protein], answer: Answer) -> list[Array]:
        tokens = [protein.tokens for protein in proteins]
        with self._progress("residues", sum(protein.num_residues for protein in proteins)):
            return self._engine.run(tokens, answer, [protein.chains for protein in proteins])

    def _progress(self, title: str, total: int) -> tqdm[Any]:
        is_small = total < PROGRESS_RESIDUES
        bar = tqdm(total=total, desc=title, unit="residue", unit_scale=True, disable=is_small)
        self._engine.on_residues = bar.update
        return bar


def _joins(chains: str | None) -> bool:
    """Return whether records with several chains are read as one protein."""
    return chains is not None and chain_mode(chains).joins


def _whole_number(name: str, value: object) -> int:
    """Return the value of a parameter as a whole number.

    Raises:
        ValueError: if it is none.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ValueError(f"{name}: got {value!r}; expected a whole number")
    return int(value)


def _names(parameter: str, values: Sequence[str]) -> list[str]:
    """Return names of variants.

    Raises:
        ValueError: if they are no list of texts.
    """
    if isinstance(values, str):
        raise ValueError(f"{parameter}: got one string; give a list of names, such as ['A42G']")
    names = list(values)
    for name in names:
        if not isinstance(name, str):
            raise ValueError(f"{parameter}: got {name!r} in the list; expected names as text")
    return names


def _refusal(kind: Kind, name: str, reason: str) -> ValueError:
    """Return the error for a sequence that is refused."""
    return stopped(Reader.PYTHON, Reject(kind, name, reason))
