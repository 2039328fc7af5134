"""Losses, learning-rate schedules, the trainer and its checkpoints."""
