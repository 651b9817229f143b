"""Room 6, CHECK: report + policy → pass or fail, written as JUnit XML, SARIF, Markdown or GitHub annotations."""
