"""Topics as DataFrames: options, plans, readers, and how a task fetches and decodes its rows."""
