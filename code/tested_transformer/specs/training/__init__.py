"""The Spec of training."""
