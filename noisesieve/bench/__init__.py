"""Measure: metrics against known right labels, peers on the same data, charts, and the protocol of published tables."""
