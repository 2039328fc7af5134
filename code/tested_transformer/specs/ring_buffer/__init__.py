"""The Spec of a cache that keeps the last keys."""
