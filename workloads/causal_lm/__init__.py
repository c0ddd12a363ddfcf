"""Fine-tuning of causal language models on questions and answers."""
