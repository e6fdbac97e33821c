"""A whole cluster in one thread, on a fake clock, disk and network, from one seed: `python -m simulation --seeds 700`.

What runs is the real thing as far as it decides anything: the controller (`moldau.cluster`), the metadata's records and
images, the leader's and the follower's end of a partition, producer state, the shards of groups and transactions. What
is faked is what they stand on. Between the two are thin stand-ins for the broker's shells, which say so on top.

    world         time, randomness, events in order, the trace
    network       requests and answers: late, lost, cut off, refused; connections that break
    store         the metadata store: elections, one line of records, the fence
    log           a replica's log, and what of it survives the death of a process or a machine
    broker        a process: its life, its image, its place in the cluster (`controller`, `replication`, `coordinator`)
    clients       producers, consumers, transactions, groups: they remember what they were promised
    checker       what must be true after every single step, and at the end
    faults        what goes wrong, and how it heals
    scenarios     which of it when

After the faults everything is healed, and the cluster has to come to rest with nothing lost and nobody waiting.
A run is a function of scenario and seed alone: a failure prints the command line that repeats it, step by step.
"""
