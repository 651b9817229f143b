"""How good is a run? Truth, random samples that people decide, planted flips, metrics, and a chart."""
