"""The Spec of xPos."""
