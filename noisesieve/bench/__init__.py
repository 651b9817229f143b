"""Peers on the same data, and the protocol of published tables."""
