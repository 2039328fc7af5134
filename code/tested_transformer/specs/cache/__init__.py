"""The Spec of cache."""
