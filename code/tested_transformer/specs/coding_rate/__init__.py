"""The Specs of CRATE: the coding rate, its gradient, attention in subspaces, the step to sparse codes."""
