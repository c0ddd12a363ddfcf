"""Published scores of models, for comparison with ours only if data, release and protocol are the same."""

NOT_COMPARABLE = "not comparable"
TOLERANCE = 0.005
"""Differences between correct programs: types of numbers, windows of the longest proteins, rounding."""
PROTEINGYM = {
    # Summary table of ProteinGym v1.3 (substitutions, zero-shot, Spearman), and its row of one assay.
    "facebook/esm2_t6_8M_UR50D": (0.226, 0.399),
    "facebook/esm2_t12_35M_UR50D": (0.321, 0.557),
    "facebook/esm2_t30_150M_UR50D": (0.387, 0.661),
    "facebook/esm2_t33_650M_UR50D": (0.414, 0.731),
    "facebook/esm2_t36_3B_UR50D": (0.406, 0.589),
    "facebook/esm2_t48_15B_UR50D": (0.400, 0.430),
}
"""Mean over all assays, and the correlation of ``ONE_ASSAY``, by hub id. Those of ESMC are left out: they
were most likely made with the checkpoints of December 2024."""
ONE_ASSAY = "BLAT_ECOLX_Stiffler_2015"
RELEASE = "v1.3"
MAX_RESIDUES = 1022


def proteingym(model: str, release: str | None, max_residues: int, assay: str | None = None) -> str:
    """Return the published mean over all assays or the correlation of one assay, or why there is none.

    Args:
        model: hub id, or a folder.
        release: release of the scored assays; None if they are not those of a release.
        max_residues: residues in a window.
        assay: name of one assay; None is the mean.
    """
    reasons = {
        f"no published figure of {model}": model not in PROTEINGYM,
        f"published for {RELEASE}": assay is None and release != RELEASE,
        f"published with windows of {MAX_RESIDUES} residues": max_residues != MAX_RESIDUES,
        "no published figure of this assay": assay not in (None, ONE_ASSAY),
    }
    if reason := next((text for text, holds in reasons.items() if holds), None):
        return f"{NOT_COMPARABLE}: {reason}"
    return f"{PROTEINGYM[model][assay is not None]:.3f} \N{PLUS-MINUS SIGN} {TOLERANCE}"
