"""The Spec of feed forward."""
