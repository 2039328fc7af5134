"""The Spec of scoring."""
