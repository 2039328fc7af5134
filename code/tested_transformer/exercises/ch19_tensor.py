"""An exercise of chapter 19, on its page about tensor parallelism: a worker's part of a layer."""

from __future__ import annotations

from dataclasses import replace

from ..specs.parallel.spec import FEED_FORWARD_PART

EXERCISES = (replace(FEED_FORWARD_PART, name="ch19.feed_forward_part", points=3),)
