"""What a single chapter measures, named by its chapter."""
