"""Whole clusters of real brokers in one process, on virtual time, from one seed.

`simulate` runs a story: an async function that gets a `SimulatedKafka`, a cluster whose faults are methods.

stories     `simulate`: a story, a seed, a report when it fails
kafka       the cluster as a story sees it
processes   the application's own processes, with event loops for code that knows nothing of the simulation
answers     answers of brokers that never arrive
guards      what a story must not use: threads, real sockets

loop        virtual time: one heap of events; an asyncio event loop for each process
host        a machine with its clocks, and the process that runs on it: kill, pause, lost power
network     sockets between hosts: latency, chunks, refusals, resets, cuts
disk        files that a lost power can take
threads     what a broker does in threads, done in virtual time
store       the metadata store of the cluster
cluster     brokers on hosts
patches     the clocks and the randomness of the standard library
timeline    log messages in the timeline of a run
"""

from moldau.errors import SimulationError
from moldau.testing.simulation.kafka import Broker, SimulatedKafka
from moldau.testing.simulation.processes import Process
from moldau.testing.simulation.responses import LostResponse
from moldau.testing.simulation.stories import simulate

__all__ = ["Broker", "LostResponse", "Process", "SimulatedKafka", "SimulationError", "simulate"]
