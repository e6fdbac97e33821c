"""Hard kills under load, round after round: `python -m soak --rounds 20 --seed 1`; and what else may happen to a
cluster: `python -m soak --cluster 300`.

`broker_process` is a broker as its own process, `load` writes through real clients and remembers what was
acknowledged, `check` reads it all back. For three brokers `cluster_faults` is what is done to them, `cluster_load` who
works meanwhile, `history` holds what they were told against one log. `hosts` gives brokers and ZooKeepers addresses of
their own, so that packets can be lost: `python -m soak --hosts`. The integration tests use all of it.
"""
