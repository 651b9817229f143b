"""Room 3, TRAIN: Pixels → Scores. Losses, schedules and augmentation are pure; the loop puts them together."""
