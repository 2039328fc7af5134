"""The Spec of differential attention."""
