"""The Spec of positions."""
