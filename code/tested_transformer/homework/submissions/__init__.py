"""What students hand in: found, read, cut into definitions, looked through for forbidden names."""
