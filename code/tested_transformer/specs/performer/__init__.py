"""The Spec of Performer attention."""
