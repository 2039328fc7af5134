"""Families of models that transformers has too, a file each; `loading` discovers them."""
