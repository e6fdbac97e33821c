"""The checkpoint of a query: what it holds, what the query was, what may change, and how to start over."""
