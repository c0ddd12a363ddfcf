"""Report sections of a pre-training on proteins."""

from collections.abc import Mapping
from typing import Any

from seqlm.proteins.data.similarity import describe_similar
from seqlm.training.report.run_report import ReportContents


class ProteinContents(ReportContents):
    """Report sections of a run on proteins, by default of a pre-training."""

    unit = "residues"
    records = "proteins"
    predicted: str | None = "masked residue"

    def data_facts(self, manifest: Mapping[str, Any]) -> dict[str, str]:
        similar = manifest.get("similar")
        return (
            {"similar proteins": describe_similar(similar)} if isinstance(similar, Mapping) else {}
        )

    def crop_tokens(self, config: Mapping[str, Any]) -> int | None:
        model = config.get("model")
        longest = model.get("max_residues") if isinstance(model, Mapping) else None
        return longest if isinstance(longest, int) else None

    def subtitle(self, config: Mapping[str, Any]) -> str:
        model = config.get("model")
        if not isinstance(model, Mapping) or model.get("init_from") or "size" not in model:
            return ""
        family = "ESMC" if model.get("family") == "esmc" else "ESM-2"
        return f"{family} {model['size']}"
