"""Predict contacts: ``python -m workloads.contacts --config RUN.yaml [section.field=value ...]``.

Writes the top contacts as CSV or Parquet, and for each protein the matrix (.npz, .tsv) and a picture
(``workloads/esm2/contacts/command.py``).
"""

from __future__ import annotations

from workloads.inference import run_inference
from workloads.run_file import INFERENCE, RunFile, run_stage


def main(config: RunFile) -> None:
    run_inference("contacts", config)


if __name__ == "__main__":
    run_stage(main, INFERENCE)
