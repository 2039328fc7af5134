"""The Spec of Infini-attention."""
