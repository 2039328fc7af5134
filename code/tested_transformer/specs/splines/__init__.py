"""The Specs of B-splines and of a KAN layer."""
