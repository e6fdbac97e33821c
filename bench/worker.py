"""One client process: `python -m bench.worker JOB PARAMETERS`, see `drive.py` for the lines it speaks."""

from __future__ import annotations

import json
import signal
import sys
import time

from bench.jobs import JOBS


def main() -> None:
    job, parameters = JOBS[sys.argv[1]], json.loads(sys.argv[2])
    cpu_before = 0.0
    # What the job has started ends with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))

    def ready() -> None:
        nonlocal cpu_before
        print("ready", flush=True)
        if sys.stdin.readline() != "go\n":
            sys.exit("the runner went away")
        cpu_before = time.process_time()

    result = job(parameters, ready)
    result.setdefault("client_cpu_s", time.process_time() - cpu_before)
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
