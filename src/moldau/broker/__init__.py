"""The asyncio shell: sockets, one dispatch table, one handler file per API family, delayed fetch and produce.

Policy lives below: what a log may hold in `moldau.log`, what a topic may be in `moldau.metadata`.
"""
