"""The Spec of T5's relative positions."""
