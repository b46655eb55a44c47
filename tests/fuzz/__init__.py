"""Damaged files and random command lines: each case is given by its number, and can be repeated by it."""
