"""Room 3, TRAIN: Pixels → Scores.

`loop` trains a network with the sieve, `frozen` trains heads on frozen features; `plan` chooses between them.
"""
