"""Mutated frames and huge requests against a live broker: `python -m fuzz --seconds 60 --seed 1`.

`requests` builds a valid request of any API and version, `mutate` damages it, `attack` sends it. `largest` builds the
largest valid requests of every API, `holds` sends them and measures for how long each keeps the broker from others.
"""
