"""The Spec of losses."""
