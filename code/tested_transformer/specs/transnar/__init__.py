"""The Specs of TransNAR: messages between nodes, shortest distances step by step, tokens that read nodes."""
