"""Room 5, RECORD: Verdicts → report.parquet and the files beside it."""
