"""The frequencies and the attention factor of YaRN."""
