"""Per lesson: wrong answers and other right ones, and claims about the output of its cells."""
