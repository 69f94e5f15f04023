"""Grades a program: by what it prints, by what a function of it returns, or by assertions about that."""
