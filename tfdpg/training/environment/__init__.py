"""Stepping environments: reset and step, act and observe, and the schedule of updates. Only NumPy is needed here."""
