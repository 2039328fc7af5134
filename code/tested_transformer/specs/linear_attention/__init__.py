"""The Spec of linear attention."""
