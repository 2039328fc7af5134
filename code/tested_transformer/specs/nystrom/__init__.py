"""The Spec of Nystrom attention."""
