"""A student's code runs in a jail, and only arrays come out."""
