"""Tables of databases: one engine for reading and one for writing, and a small table for what each database does its
own way (`dialects`). PostgreSQL is read and written as Arrow, through ADBC; SQLite with Python's own module, because
ADBC guesses the types of SQLite's columns from the first rows, and fails at the first that differs."""
