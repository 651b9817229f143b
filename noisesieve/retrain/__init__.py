"""Room 7, RETRAIN: report + Pixels → a model. Clean labels are learnt; of corrupted rows only the pictures count."""
