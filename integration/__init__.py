"""The lookup in transformers: the only place that knows torch and transformers."""
