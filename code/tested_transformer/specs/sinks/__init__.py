"""The Spec of learned attention sinks."""
