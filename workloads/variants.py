"""Score mutations: ``python -m workloads.variants --config RUN.yaml [section.field=value ...]``.

Writes CSV or Parquet with the columns id, mutation and score (``workloads/esm2/inference/variants.py``).
"""

from __future__ import annotations

from workloads.inference import run_inference
from workloads.run_file import INFERENCE, RunFile, run_stage


def main(config: RunFile) -> None:
    run_inference("variants", config)


if __name__ == "__main__":
    run_stage(main, INFERENCE)
