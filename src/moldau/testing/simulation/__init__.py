"""Whole clusters of real brokers in one process, on virtual time, from one seed.

loop        virtual time: one heap of events; an asyncio event loop for each process
host        a machine with its clocks, and the process that runs on it: kill, pause, lost power
network     sockets between hosts: latency, chunks, refusals, resets, cuts
threads     what a broker does in threads, done in virtual time
store       the metadata store of the cluster
cluster     brokers on hosts
"""
