"""Training on many devices, as far as it can be judged in one process."""
