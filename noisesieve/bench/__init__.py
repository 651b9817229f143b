"""Measure: plant known flips, hold verdicts against a truth, put the peers side by side. Stands outside the house."""
