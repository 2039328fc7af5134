"""Formulas without weights: attention, the one front door, and what stands behind it."""
