"""Fine-tuning of causal language models on questions and answers, by the trainer of ``workloads/esm2``."""
