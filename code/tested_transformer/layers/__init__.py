"""The parts of a model with weights of their own, an idea per file."""
