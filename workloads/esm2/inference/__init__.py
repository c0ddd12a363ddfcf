"""A trained model at work: embeddings, predictions and effects of variants."""
