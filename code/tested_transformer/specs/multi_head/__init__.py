"""The Spec of multi head."""
