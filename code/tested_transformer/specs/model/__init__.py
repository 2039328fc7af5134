"""The Spec of model."""
