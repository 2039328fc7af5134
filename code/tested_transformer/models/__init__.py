"""Whole models, a family per file."""
