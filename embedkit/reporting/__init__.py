"""Reports for people: charts, tables and comparisons."""
