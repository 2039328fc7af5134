"""Training on several processes: what they send each other, written out."""
