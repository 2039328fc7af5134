"""What a model costs, and what another library means."""
