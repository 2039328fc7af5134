"""The Spec of generation."""
