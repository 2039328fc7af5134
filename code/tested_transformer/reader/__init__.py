"""What the reader of a chapter meets: shown code, saved parts, a model of one's own."""
