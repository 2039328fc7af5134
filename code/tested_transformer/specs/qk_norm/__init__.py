"""The Spec of QK-norm."""
