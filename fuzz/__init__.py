"""Mutated frames against a live broker: `python -m fuzz --seconds 60 --seed 1`.

`requests` builds a valid request of any API and version, `mutate` damages it, `attack` sends it.
"""
