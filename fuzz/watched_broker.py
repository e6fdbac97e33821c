"""A broker whose loop is watched: `python -m fuzz.watched_broker FILE ARGUMENTS…`, as `kafka-server-start ARGUMENTS…`.

FILE holds the seconds of the loop's longest step, as a double; whoever writes a zero there begins anew.
"""

from __future__ import annotations

import mmap
import struct
import sys
from pathlib import Path

from fuzz.loop_watch import watched_steps

SECONDS = struct.Struct("=d")


def main() -> int:
    sys.modules["uvloop"] = None  # type: ignore[assignment]  # its steps cannot be watched
    with Path(sys.argv[1]).open("r+b") as file:
        longest = mmap.mmap(file.fileno(), SECONDS.size)

    def tell(seconds: float) -> None:
        if seconds > SECONDS.unpack_from(longest)[0]:
            SECONDS.pack_into(longest, 0, seconds)

    from moldau.cli.servers.broker import kafka_server_start_main

    sys.argv = ["kafka-server-start", *sys.argv[2:]]
    with watched_steps(tell):
        return kafka_server_start_main()


if __name__ == "__main__":
    sys.exit(main())
