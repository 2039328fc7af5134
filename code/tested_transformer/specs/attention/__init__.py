"""The Spec of attention."""
