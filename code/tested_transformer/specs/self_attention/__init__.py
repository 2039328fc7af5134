"""The Spec of self attention."""
