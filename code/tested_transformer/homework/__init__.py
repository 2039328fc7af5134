"""Homework: what students hand in is read as text, and run where only arrays come out."""
