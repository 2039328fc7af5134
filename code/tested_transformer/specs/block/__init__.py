"""The Spec of block."""
