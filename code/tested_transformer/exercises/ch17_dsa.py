"""Exercises of chapter 17, on its page about DeepSeek's indexer."""

from __future__ import annotations

from dataclasses import replace

from ..specs.indexed.spec import INDEXER_LOSS

EXERCISES = (replace(INDEXER_LOSS, name="ch17.indexer_loss", points=2),)
