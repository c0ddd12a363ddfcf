"""Fine-tuning: labelled proteins, models with heads, LoRA, scores and reports."""
