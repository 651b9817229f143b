"""Room 7, RETRAIN: report + Pixels → a model. Corrupted rows are trained on without their label."""
