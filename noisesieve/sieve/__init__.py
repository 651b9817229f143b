"""Room 4, DECIDE: Scores → Verdicts. Pure functions of tensors; the formulas exist only here."""
