"""The Specs of BitNet b1.58: its linear layer and its packed weights."""
