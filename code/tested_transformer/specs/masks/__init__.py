"""The Spec of masks."""
