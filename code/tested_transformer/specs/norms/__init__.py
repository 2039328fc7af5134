"""The Spec of norms."""
