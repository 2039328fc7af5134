"""The Spec of the delta rule, with and without decay."""
