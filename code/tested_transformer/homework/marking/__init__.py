"""From a submission to marks."""
