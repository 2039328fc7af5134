"""The Spec of scaling."""
