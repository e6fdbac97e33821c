"""Clusters of real brokers under faults, run from a seed, and what must always be true of them.

    scenarios   how large the cluster is, who uses it, what goes wrong
    faults      kills, pauses, lost power, cut and slow links, failing disks and stores, and what administrators do
    client      an asyncio client on the wire protocol; `producers`, `transactors` and `admin` are made of it
    checker     what must be true at every moment and at the end
    run         one scenario with one seed
    planted     bugs put into the brokers, to prove that the checks find them

`python -m simulation` runs seeds; `python -m simulation --seed 12 --trace` shows one.
"""
