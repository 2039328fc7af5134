"""Homework: tasks with points, and a grader that runs a student's code where only arrays come out.

Who imports whom, always from left to right:

    tasks ──┬── assignments ──┬── self_check (`check`, in a student's notebook)
            ├── handout ──────┤
            └── hunts ────────┤
    jail ────── submissions ──┴── marking ── reports ── __main__ (the commands)

tasks: what an assignment is made of. assignments: one module for each, discovered. hunts: bug hunts judged.
handout: the questions as students got them, from the notebooks. jail: where a student's code runs.
submissions: what was handed in, read as text. marking: points. reports: pages and tables for people. words
(numbers and names in sentences) imports nothing, and all may import it.
"""

from .self_check import check

__all__ = ["check"]
