"""The exercises of the chapters. An exercise is a Spec with points."""

from __future__ import annotations

from . import ch01, ch02, ch03, ch04, ch05, ch06, ch07, ch08, ch09, ch10, ch11, ch15

EXERCISES = {
    spec.name: spec
    for chapter in (ch01, ch02, ch03, ch04, ch05, ch06, ch07, ch08, ch09, ch10, ch11, ch15)
    for spec in chapter.EXERCISES
}
