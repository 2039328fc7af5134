"""How a model learns where a token stands, a scheme per file."""
