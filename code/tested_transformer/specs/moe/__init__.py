"""The Specs of a mixture of experts."""
