"""The Spec of TTT-Linear."""
