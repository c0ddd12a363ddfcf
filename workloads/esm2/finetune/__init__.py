"""Fine-tuning: labelled proteins, models with heads, scores and figures."""
