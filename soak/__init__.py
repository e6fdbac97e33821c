"""Hard kills under load, round after round: `python -m soak --rounds 20 --seed 1`.

`broker_process` is a broker as its own process, `load` writes through real clients and remembers what was
acknowledged, `check` reads it all back. The integration tests use all three.
"""
