"""Kafka's commands under Kafka's names and flags; each is also `moldau <name>`.

One file per command, in a folder by subject: `admin` (topics and the cluster), `coordination` (groups and
transactions), `records` (console, performance, dump) and `servers` (start and stop). `registry` names them all,
`common` holds what they share (parsers, errors, output).
Nothing here needs our broker: the commands work against any Kafka. Imports that cost milliseconds stay
inside the functions that need them, so that `--help` and mistakes in the arguments answer at once.
"""
