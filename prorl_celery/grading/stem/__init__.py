"""Grading of science questions: multiple choice, numbers with units, free answers by a judge."""
