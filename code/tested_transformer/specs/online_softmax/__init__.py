"""The Spec of online softmax."""
