"""Predict by a fine-tuned model: ``python -m workloads.predict --config RUN.yaml [field=value ...]``.

Writes CSV or Parquet with the columns id, length, label and probability_<class>
(``workloads/esm2/inference/predict.py``).
"""

from __future__ import annotations

from workloads.inference import run_inference
from workloads.run_file import INFERENCE, RunFile, run_stage


def main(config: RunFile) -> None:
    run_inference("predict", config)


if __name__ == "__main__":
    run_stage(main, INFERENCE)
